from __future__ import annotations

from hespas.xla.hlo.schema import enum_names, message_class


def test_a_module_survives_the_wire() -> None:
    module = message_class("xla.HloModuleProto")(name="step", entry_computation_id=7)
    again = message_class("xla.HloModuleProto").FromString(module.SerializeToString())
    assert (again.name, again.entry_computation_id) == ("step", 7)


def test_enumerations_are_known_by_number() -> None:
    assert enum_names("xla.PrimitiveType")[16] == "BF16"
