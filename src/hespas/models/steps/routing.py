"""Layers of experts: choice, products, and sums of their results.

Tokens of a device are sorted by the expert that they chose; each expert takes as many as its
capacity, and an all-to-all over the axes of the experts brings them to the device that has it.
Dropless products take all rows as they were sorted, with the count of each expert.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import PartitionSpec

from hespas.base.frozen import frozen
from hespas.models.architecture import Routing, Style
from hespas.models.language import LanguageModel
from hespas.models.steps.exchange import Exchange, Packing, sent_back, sent_to_experts
from hespas.models.steps.layer import Layer, Weights, activated, gated
from hespas.models.steps.norms import apart_in_experts
from hespas.models.steps.products import (
    Grouped,
    Rounded,
    RoundedTo4Bits,
    adapted,
    grouped_product,
    is_stored,
    product,
    stored_order,
)
from hespas.models.steps.sharding import Divided
from hespas.models.weights import adapter_weights, routing_weights


def through_experts(layer: Layer, x: jax.Array, sent: jax.Array | None = None) -> jax.Array:
    """Send (batch, sequence, embedding) through experts; sum each token's.

    The router reads ``x``; experts are ``sent`` others in their place, where these are given.
    """
    model, divided, weights = layer.model, layer.divided, layer.weights
    sent = x if sent is None else sent
    routing = model.routing
    assert routing is not None  # noqa: S101 - for the type checker: routed layers have it
    # Weights are cast where they lie, and gathered in the narrower type.
    shapes = routing_weights(model.style, routing)
    shapes |= adapter_weights(model, shapes)
    own = {
        name: weight
        if is_stored(weight := weights[name])
        else divided.constrain(weight.astype(x.dtype), *dimensions)
        for name, dimensions in shapes.items()
    }
    # The width of an expert stays divided; all else of it is whole.
    divides = {name: divided.spec(name)[0] for name in ("experts", "expert_mlp")}
    specs = {
        name: _spec(name, PartitionSpec(*map(divides.get, dimensions)), own[name])
        for name, dimensions in shapes.items()
    }
    rows = divided.spec("batch", _sent_dimension(routing), None)

    def routed(weights: Weights, x: jax.Array, sent: jax.Array) -> jax.Array:
        rounded = _in_few_bits(model, weights)
        if model.lora_modules:
            rounded = adapted(rounded, x.dtype, of_experts=True)
        experts = _Experts(routing=routing, style=model.style, divided=divided, weights=rounded)
        return experts.through(x, sent)

    if not divided.mesh.names:
        return routed(own, x, sent)
    mapped = jax.shard_map(
        routed,
        in_specs=(specs, rows, rows),
        out_specs=rows,
        axis_names=set(divided.mesh.names),
        check_vma=False,
    )
    return mapped(own, x, sent)


def _in_few_bits(model: LanguageModel, weights: Weights) -> Weights:
    """Mark the experts' weights to round to few bits."""
    dtype = model.training.expert_product_dtype
    if dtype == "same":
        return weights
    kind = RoundedTo4Bits if dtype == "f4" else Rounded
    return {
        name: kind(weight) if name in _MULTIPLIED else weight for name, weight in weights.items()
    }


_MULTIPLIED = frozenset({"experts_gate", "experts_up", "experts_down"})


def _spec(name: str, spec: PartitionSpec, weight: Any) -> Any:
    """Return a weight's division; few-bit ones are reordered, with scales."""
    if not is_stored(weight):
        return spec
    stored = PartitionSpec(*(spec[dimension] for dimension in stored_order(name, len(spec))))
    if isinstance(weight, Grouped):
        return replace(weight, values=stored, scales=stored)
    return stored, PartitionSpec()


def _sent_dimension(routing: Routing) -> str:
    return "norm_sequence" if "tp" in routing.axes else "sequence"


def _own_places(chosen: jax.Array, axes: tuple[str, ...], own: int) -> jax.Array:
    """Return the places of chosen experts among own ones."""
    places = chosen - own * lax.axis_index(axes)
    return jnp.where((places >= 0) & (places < own), places, own)


def biased_one_by_one(style: Style, rows: jax.Array, bias: jax.Array) -> jax.Array:
    """Add biases to (experts, rows, embedding), a kernel each.

    The bias of each row is written, which weighs it; each expert adds its own, and all are put
    together. Source: megatron-core 0.16.1, ``TEGroupedMLP._apply_bias`` of
    transformer/moe/experts.py.
    """
    wide = apart_in_experts(style, jnp.broadcast_to(bias, rows.shape))
    if len(rows) == 1:
        return apart_in_experts(style, rows + wide)
    first, later = (
        apart_in_experts(style, rows[experts] + wide[experts])
        for experts in (slice(1), slice(1, None))
    )
    return apart_in_experts(style, jnp.concatenate([first, later]))


@frozen
class _Experts:
    """A device's experts, and the route of its tokens."""

    routing: Routing
    style: Style
    divided: Divided
    weights: Weights

    def through(self, x: jax.Array, sent: jax.Array) -> jax.Array:
        """Return what the experts make of a device's tokens."""
        tokens, rows = (array.reshape(-1, array.shape[-1]) for array in (x, sent))
        is_exchanged = self.divided.mesh.size(*self._exchanged_axes) > 1
        if self.routing.expert_groups > 1 and is_exchanged:
            out = self._through_groups(tokens, rows)
        elif self.routing.dropless and is_exchanged:
            out = self._through_devices(tokens, rows)
        else:
            out = self._through_all(tokens, rows)
        with jax.named_scope("combine"):
            summed = (*sorted(self.divided.used("expert_mlp")), *self._shared_axes)
            if summed:
                out = lax.psum(out, summed)
            return out.reshape(sent.shape)

    @property
    def _shared_axes(self) -> tuple[str, ...]:
        """The axes that divide the experts and no tokens."""
        of_tokens = self.divided.used("batch", _sent_dimension(self.routing))
        return tuple(
            axis for axis in self.divided.mesh.present(self.routing.axes) if axis not in of_tokens
        )

    @property
    def _exchanged_axes(self) -> tuple[str, ...]:
        """The axes that divide the experts and the tokens."""
        shared = self._shared_axes
        return tuple(
            axis for axis in self.divided.mesh.present(self.routing.axes) if axis not in shared
        )

    def _through_all(self, tokens: jax.Array, rows: jax.Array) -> jax.Array:
        """Send tokens to their chosen experts; return the results.

        Of tokens that several devices have, each device computes what its own experts make; the
        caller sums that.
        """
        shared = self._shared_axes
        parts = self.divided.mesh.size(*shared)
        targets = self.routing.experts // parts
        with jax.named_scope("router"):
            gates, chosen = self._choice(tokens)
            packing = Packing.of(
                _own_places(chosen, shared, targets) if shared else chosen,
                targets=targets,
                capacity_percent=self.routing.capacity_percent,
                parts=parts,
            )
        axes, dtype = self._exchanged_axes, self.routing.exchange_dtype
        devices = self.divided.mesh.size(*axes)
        sorts = self.routing.dispatcher == "alltoall" and 1 < devices < self.routing.experts
        exchange = Exchange(axes=axes, devices=devices, sorts=sorts)
        rows, packing = self._weighed(gates, rows, packing)
        if self.routing.dropless:
            outputs = self._dropless(rows, packing)
        else:
            with jax.named_scope("dispatch"):
                arrived = sent_to_experts(exchange, dtype, packing.packed(rows))
            outputs = self._products(arrived)
            with jax.named_scope("combine"):
                outputs = packing.unpacked(sent_back(exchange, dtype, outputs))
        return self._combined(gates, outputs)

    def _weighed(
        self, gates: jax.Array, rows: jax.Array, packing: Packing
    ) -> tuple[jax.Array, Packing]:
        """Weigh rows by gates, if these scale inputs."""
        if not self.routing.style.scales_inputs:
            return rows, packing
        weighed = jnp.einsum("tk,td->tkd", gates.astype(rows.dtype), rows)
        return weighed.reshape(-1, rows.shape[-1]), replace(packing, choices=1)

    def _combined(self, gates: jax.Array, outputs: jax.Array) -> jax.Array:
        with jax.named_scope("combine"):
            by_choice = outputs.reshape(*gates.shape, -1)
            if self.routing.style.scales_inputs:
                return jnp.sum(by_choice, 1)
            return jnp.einsum("tk,tkd->td", gates.astype(outputs.dtype), by_choice)

    def _through_devices(self, tokens: jax.Array, rows: jax.Array) -> jax.Array:
        """Send tokens to their experts' devices; return the results.

        A device takes as many as are its part of all, whichever of its experts they chose.
        """
        axes, dtype = self._exchanged_axes, self.routing.exchange_dtype
        exchange = Exchange(axes=axes, devices=self.divided.mesh.size(*axes), is_even=True)
        own, width = self.routing.experts // exchange.devices, rows.shape[-1]
        with jax.named_scope("router"):
            gates, chosen = self._choice(tokens)
            to_devices = Packing.of(
                chosen // own,
                targets=exchange.devices,
                capacity_percent=self.routing.capacity_percent,
            )
            # What a token chose goes with it, from 1 on: 0 is for empty places.
            choices = 1 + (chosen % own).reshape(-1, 1)
        rows, to_devices = self._weighed(gates, rows, to_devices)
        with jax.named_scope("dispatch"):
            arrived = sent_to_experts(exchange, dtype, to_devices.packed(rows)).reshape(-1, width)
            there = exchange.there(to_devices.packed_choices(choices)).reshape(-1, 1)
            packing = Packing.of(
                jnp.where(there > 0, there - 1, own), targets=own, capacity_percent=100
            )
        outputs = self._dropless(arrived, packing).reshape(exchange.devices, -1, width)
        with jax.named_scope("combine"):
            outputs = to_devices.unpacked(sent_back(exchange, dtype, outputs))
        return self._combined(gates, outputs)

    def _through_groups(self, tokens: jax.Array, rows: jax.Array) -> jax.Array:
        """Send tokens once per chosen group; return the results.

        The device of a group at the same place in it as the token's own copies it to the devices of
        its experts, and sums what they make before that goes back. Source: DeepSeek-AI, DeepSeek-V3
        Technical Report, 2024, sections 2.1.2 and 3.2.2.
        """
        groups, dtype = self.routing.expert_groups, self.routing.exchange_dtype
        between, inside = self._group_exchanges()
        width = rows.shape[-1]
        with jax.named_scope("router"):
            gates, chosen_groups, chosen = self._choice_in_groups(tokens)
            to_groups = Packing.of(
                chosen_groups, targets=groups, capacity_percent=self.routing.capacity_percent
            )
            # What a token chose in a group goes there with it, from 1 on: 0 is for empty places.
            choices = jnp.concatenate([gates, 1 + chosen.astype(gates.dtype)], -1)
        with jax.named_scope("dispatch"):
            there = sent_to_experts(between, dtype, to_groups.packed(rows)).reshape(-1, width)
            sent = to_groups.packed_choices(choices.reshape(-1, choices.shape[-1]))
            gates, chosen = jnp.split(between.there(sent).reshape(len(there), -1), 2, -1)
            experts = self.routing.experts // groups
            to_experts = Packing.of(
                jnp.where(chosen > 0, chosen.astype(jnp.int32) - 1, experts),
                targets=experts,
                # There are as many more places than tokens already.
                capacity_percent=100,
            )
            arrived = sent_to_experts(inside, dtype, to_experts.packed(there))
        outputs = self._products(arrived)
        with jax.named_scope("combine"):
            returned = to_experts.unpacked(sent_back(inside, dtype, outputs))
            by_choice = returned.reshape(*chosen.shape, -1)
            summed = jnp.einsum("tk,tkd->td", gates.astype(rows.dtype), by_choice)
            back = sent_back(between, dtype, summed.reshape(groups, -1, width))
            return jnp.sum(to_groups.unpacked(back).reshape(*chosen_groups.shape, -1), 1)

    def _choice(self, tokens: jax.Array) -> tuple[jax.Array, jax.Array]:
        if self.routing.expert_groups > 1:
            gates, groups, chosen = self._choice_in_groups(tokens)
            chosen += groups[..., None] * (self.routing.experts // self.routing.expert_groups)
            return gates.reshape(len(tokens), -1), chosen.reshape(len(tokens), -1)
        logits = self._logits(tokens)
        is_plain = self.routing.gate == "softmax" and not self.routing.style.corrected
        if is_plain and self.routing.style.normalised:
            best, chosen = lax.top_k(logits, self.routing.chosen)
            gates = jax.nn.softmax(best, -1)
            if "router_expert_scales" in self.weights:
                gates = gates * self.weights["router_expert_scales"].astype(jnp.float32)[chosen]
            return self._scaled_gates(gates), chosen
        scores = (
            jax.nn.sigmoid(logits) if self.routing.gate == "sigmoid" else jax.nn.softmax(logits, -1)
        )
        _, chosen = lax.top_k(scores + self._correction, self.routing.chosen)
        best = jnp.take_along_axis(scores, chosen, -1)
        if self.routing.style.normalised:
            best = best / jnp.sum(best, -1, keepdims=True)
        return self._scaled_gates(best), chosen

    def _scaled_gates(self, gates: jax.Array) -> jax.Array:
        return gates if self.routing.style.scale == 1 else gates * self.routing.style.scale

    def _logits(self, tokens: jax.Array) -> jax.Array:
        logits = (tokens @ self.weights["router"]).astype(jnp.float32)
        bias = self.weights.get("router_logit_bias")
        return logits if bias is None else logits + bias.astype(jnp.float32)

    @property
    def _correction(self) -> jax.Array:
        return self.weights.get("router_bias", jnp.zeros((), jnp.float32)).astype(jnp.float32)

    def _choice_in_groups(self, tokens: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Return each token's weights, groups, and experts in groups.

        A group's score is the sum of those of its experts that would be chosen.
        """
        chosen_of_group = self.routing.chosen // self.routing.chosen_groups
        logits = self._logits(tokens)
        scores = jax.nn.sigmoid(logits) if self.routing.gate == "sigmoid" else jnp.exp(logits)
        by_group = (scores + self._correction).reshape(len(tokens), self.routing.expert_groups, -1)
        best, experts = lax.top_k(by_group, chosen_of_group)
        _, groups = lax.top_k(jnp.sum(best, -1), self.routing.chosen_groups)
        chosen = jnp.take_along_axis(experts, groups[..., None], 1)
        of_groups = scores.reshape(by_group.shape)
        of_chosen = jnp.take_along_axis(of_groups, groups[..., None], 1)
        gates = jnp.take_along_axis(of_chosen, chosen, -1)
        gates = self._scaled_gates(gates / jnp.sum(gates, (1, 2), keepdims=True))
        return gates, groups, chosen

    def _products(self, arrived: jax.Array) -> jax.Array:
        """Return what a device's experts make of (experts, rows, embedding)."""

        def through(x: jax.Array, name: str) -> jax.Array:
            equation = "ecf,efd->ecd" if name == "experts_down" else "ecd,edf->ecf"
            outputs = product(equation, x, self.weights[name])
            bias = self._expert_bias(name)
            if bias is None:
                return outputs
            bias = bias[:, None].astype(outputs.dtype)
            if name == "experts_down" and self.style.eager_experts:
                return biased_one_by_one(self.style, outputs, bias)
            return outputs + bias

        with jax.named_scope("experts"):
            return self._through_expert(arrived, through)

    def _dropless(self, rows: jax.Array, packing: Packing) -> jax.Array:
        """Return the experts' row for each choice."""
        order, counts, parts = packing.order, packing.counts, packing.parts
        with jax.named_scope("dispatch"):
            sent = rows[order[: -(-len(order) // parts)] // packing.choices]

        def through(x: jax.Array, name: str) -> jax.Array:
            outputs = grouped_product(x, self.weights[name], counts)
            bias = self._expert_bias(name)
            if bias is None:
                return outputs
            return outputs + jnp.repeat(
                bias.astype(outputs.dtype), counts, axis=0, total_repeat_length=len(x)
            )

        with jax.named_scope("experts"):
            outputs = self._through_expert(sent, through)
        with jax.named_scope("combine"):
            back = jnp.zeros_like(order).at[order].set(jnp.arange(len(order), dtype=order.dtype))
            return outputs[back] if parts == 1 else outputs.at[back].get(mode="fill", fill_value=0)

    def _through_expert(self, x: jax.Array, through: Callable[..., jax.Array]) -> jax.Array:
        """Apply experts to rows; ``through`` multiplies by named weights."""
        if self.style.gated:
            gate = checkpoint_name(through(x, "experts_gate"), "mlp_gate")
            inner = gated(self.style, gate, checkpoint_name(through(x, "experts_up"), "mlp_up"))
        else:
            inner = activated(self.style, checkpoint_name(through(x, "experts_up"), "mlp_up"))
        inner = checkpoint_name(inner, "experts_inner")
        return checkpoint_name(through(inner, "experts_down"), "mlp_down")

    def _expert_bias(self, name: str) -> jax.Array | None:
        """Return the experts' bias, divided where devices sum later."""
        bias = self.weights.get(f"{name}_bias")
        if bias is None or name != "experts_down":
            return bias
        axes = self.divided.spec("expert_mlp")[0] or ()
        return bias / self.divided.mesh.size(*((axes,) if isinstance(axes, str) else axes))

    def _group_exchanges(self) -> tuple[Exchange, Exchange]:
        """Return the exchanges between groups of experts, and inside of one."""
        axes, groups = self._exchanged_axes, self.routing.expert_groups
        devices = self.divided.mesh.size(*axes)
        members = max(1, devices // groups)
        peers = tuple(tuple(range(place, devices, members)) for place in range(members))
        own = tuple(tuple(range(first, first + members)) for first in range(0, devices, members))
        return (
            Exchange(axes=axes, devices=min(devices, groups), groups=peers, is_even=True),
            Exchange(axes=axes, devices=members, groups=own),
        )
