from hespas.xla.hlo.schema import SCHEMA_FILE
from hlo_schema import embedded_schema


def test_the_stored_schema_is_the_one_that_jaxlib_embeds() -> None:
    assert SCHEMA_FILE.read_bytes() == embedded_schema()
