"""Count the bytes that PyTorch's own kernels move, by operation.

An operation without a rule reads its inputs and writes its outputs once, in one kernel, which the
result lists as an assumption with its share. Counts of passes are those of the kernels in
pytorch/pytorch, aten/src/ATen/native/cuda (BSD-3-Clause), v2.13; a rule names its file.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import ceil, prod

from hespas.base.frozen import frozen
from hespas.errors import UnsupportedError
from hespas.frontend.recorded.messages import element_of, size_of, sizes_of
from hespas.program.attrs import KernelAttrs
from hespas.program.recorded import Operation, RecordedTensor

_SECTOR_BYTES = 32
"""The bytes that memory transfers for a single gathered element."""


@frozen
class Moved:
    """Bytes read and written by ``launches`` kernels."""

    read: int
    written: int
    launches: int = 1


@frozen
class _Rule:
    """The label and the bytes of an operation's kernels."""

    label: str
    moved: Callable[[Operation], Moved]
    is_reduction: bool = False


_FACTORISATIONS = frozenset(
    f"aten::{name}"
    for name in [
        "_cholesky_solve_helper",
        "_linalg_det",
        "_linalg_eigh",
        "_linalg_eigvals",
        "_linalg_slogdet",
        "_linalg_solve_ex",
        "_linalg_svd",
        "cholesky",
        "cholesky_inverse",
        "cholesky_solve",
        "geqrf",
        "linalg_cholesky_ex",
        "linalg_eig",
        "linalg_householder_product",
        "linalg_inv_ex",
        "linalg_ldl_factor_ex",
        "linalg_ldl_solve",
        "linalg_lstsq",
        "linalg_lu",
        "linalg_lu_factor_ex",
        "linalg_lu_solve",
        "linalg_matrix_exp",
        "linalg_qr",
        "ormqr",
    ]
)
"""Operations with more arithmetic than bytes, much of it in sequence."""


def _base_name(name: str) -> str:
    """Return an operation's name without overload and in-place mark.

    >>> _base_name("aten::add_.Tensor"), _base_name("aten::_foreach_mul_.Scalar")
    ('aten::add', 'aten::_foreach_mul')
    """
    return name.partition(".")[0].rstrip("_")


def kernels_of(operation: Operation) -> KernelAttrs | None:
    """Return an operation's kernels; None if it runs none.

    Raises `UnsupportedError` for a factorisation of matrices.
    """
    name = _base_name(operation.name)
    if name in _NOTHING or not (operation.inputs or operation.outputs):
        return None
    if name in _FACTORISATIONS:
        raise UnsupportedError(
            f"{name} has no model: its time is not that of its bytes",
            location=operation.place,
            hint="leave it out of the step, and add the time that it takes",
        )
    rule = _RULES.get(name) or (_OPTIMIZER if name.startswith("aten::_foreach_") else None)
    applied = rule or _Rule(label="other", moved=_single_pass)
    moved = applied.moved(operation)
    return KernelAttrs(
        bytes_read=moved.read,
        bytes_written=moved.written,
        launches=moved.launches,
        label=applied.label,
        is_reduction=applied.is_reduction,
        is_known=rule is not None,
    )


def host_copy_of(operation: Operation) -> RecordedTensor | None:
    """Return the device's tensor of a host copy, or None.

    A record has no tensors of the host: a copy to it has no output, one from it has no input but
    what it writes.
    """
    name, read, written = _base_name(operation.name), operation.inputs, operation.outputs
    if name not in {"aten::_to_copy", "aten::copy"}:
        return None
    if name == "aten::copy" and written:
        read = read[1:]
    if read and written:
        return None
    moved = [tensor for tensor in (*read, *written) if tensor.shape]
    return moved[0] if moved else None


def _sources(operation: Operation) -> tuple[RecordedTensor, ...]:
    """Return the inputs without tensors that are only written."""
    if ".out" not in operation.name and not operation.name.endswith("_out"):
        return operation.inputs
    return _unwritten(operation)


def _unwritten(operation: Operation) -> tuple[RecordedTensor, ...]:
    written = {tensor.storage for tensor in operation.outputs}
    return tuple([tensor for tensor in operation.inputs if tensor.storage not in written])


def _single_pass(operation: Operation) -> Moved:
    return Moved(read=sizes_of(_sources(operation)), written=sizes_of(operation.outputs))


def _passes(reads: int, launches: int = 1) -> Callable[[Operation], Moved]:
    """Return a rule for several passes over all tensors."""

    def moved(operation: Operation) -> Moved:
        single_pass = _single_pass(operation)
        return Moved(read=reads * single_pass.read, written=single_pass.written, launches=launches)

    return moved


def _only_written(operation: Operation) -> Moved:
    return Moved(read=0, written=sizes_of(operation.outputs))


def _replaced(operation: Operation) -> Moved:
    """Count ``copy_``: the overwritten tensor is not read."""
    return Moved(read=sizes_of(operation.inputs[1:]), written=sizes_of(operation.outputs))


def _moved_over(operation: Operation) -> Moved:
    """Count a copy of inputs into buffers among inputs or outputs."""
    read = sizes_of(_unwritten(operation))
    return Moved(read=read, written=read)


def _concatenated_chunks(operation: Operation) -> Moved:
    """Count ``chunk_cat``: gradients into one buffer, often of another type."""
    return Moved(read=sizes_of(_unwritten(operation)), written=sizes_of(operation.outputs))


def _gathered(operation: Operation) -> Moved:
    """Count rows read at indices."""
    written = sizes_of(operation.outputs)
    indices = [tensor for tensor in operation.inputs if _is_index(tensor)]
    return Moved(read=written + sizes_of(indices), written=written)


def _is_index(tensor: RecordedTensor) -> bool:
    return tensor.dtype in {"int32", "int64"}


def _scattered(operation: Operation) -> Moved:
    """Count values added at indices; out of place, the operand's copy first."""
    table, *tensors = operation.inputs
    added = sizes_of(tensor for tensor in tensors if not _is_index(tensor))
    indices = sizes_of(tensor for tensor in tensors if _is_index(tensor))
    copied = 0 if operation.outputs[:1] == (table,) else size_of(table)
    return Moved(
        read=2 * added + indices + copied, written=added + copied, launches=2 if copied else 1
    )


def _embedding_gradient(operation: Operation) -> Moved:
    """Count zeros, then each gradient row (Embedding.cu)."""
    gradient, *indices = operation.inputs
    rows = size_of(gradient)
    return Moved(
        read=2 * rows + sizes_of(indices),
        written=sizes_of(operation.outputs) + rows,
        launches=2,
    )


def _bags(operation: Operation) -> Moved:
    """Count the rows of each bag, and the indices (EmbeddingBag.cu)."""
    table, indices, *others = operation.inputs
    rows = prod(indices.shape) * size_of(table) // max(1, table.shape[0])
    read = rows + sizes_of((indices, *filter(_is_index, others)))
    return Moved(read=read, written=sizes_of(operation.outputs))


def _bags_gradient(operation: Operation) -> Moved:
    """Count zeros, then for each index its bag's gradient, added to a row (EmbeddingBag.cu)."""
    gradient, indices, *others = operation.inputs
    width = gradient.shape[-1] * element_of(gradient.dtype).bits // 8
    rows = prod(indices.shape) * width
    return Moved(
        read=2 * rows + sizes_of((indices, *filter(_is_index, others))),
        written=sizes_of(operation.outputs) + rows,
        launches=2,
    )


_PERSISTENT_ELEMENTS, _PERSISTENT_BYTES = 1024, 4096
"""The longest row whose softmax is one pass (PersistentSoftmax.cuh, SoftMax.cu)."""


def _softmax(operation: Operation) -> Moved:
    """Count passes for maximum, sum and result; short rows take one (SoftMax.cu)."""
    source = operation.inputs[0]
    passes = 1 if _is_short(source) else 3
    return Moved(read=passes * size_of(source), written=sizes_of(operation.outputs))


def _softmax_gradient(operation: Operation) -> Moved:
    """Count two passes, sum and gradient (SoftMax.cu).

    Short rows take one pass. A plain softmax reads gradients and results for the sum; a log-softmax
    reads gradients only.
    """
    gradient, probabilities = operation.inputs[:2]
    summed = size_of(gradient) + (0 if "log" in operation.name else size_of(probabilities))
    single_pass = size_of(gradient) + size_of(probabilities)
    read = single_pass if _is_short(gradient) else single_pass + summed
    return Moved(read=read, written=sizes_of(operation.outputs))


def _is_short(tensor: RecordedTensor) -> bool:
    row = tensor.shape[-1] if tensor.shape else 1
    size = row * element_of(tensor.dtype).bits // 8
    return row <= _PERSISTENT_ELEMENTS and size < _PERSISTENT_BYTES


def _loss(operation: Operation) -> Moved:
    """Count the target's element of each row (NLLLoss.cu, Loss.cu)."""
    targets = next(filter(_is_index, operation.inputs), None)
    if targets is None:
        return _single_pass(operation)
    read = size_of(targets) + prod(targets.shape) * _SECTOR_BYTES
    return Moved(read=read, written=sizes_of(operation.outputs))


def _loss_gradient(operation: Operation) -> Moved:
    """Count zeros written, then the target's element of each row."""
    targets = [tensor for tensor in operation.inputs if _is_index(tensor)][:1]
    gathered = sum([prod(tensor.shape) * _SECTOR_BYTES for tensor in targets])
    written = sizes_of(operation.outputs) + gathered
    return Moved(read=sizes_of(targets) + gathered, written=written, launches=2)


def _padded(operation: Operation) -> Moved:
    """Count zeros written, then the data among them."""
    read = sizes_of(operation.inputs)
    return Moved(read=read, written=sizes_of(operation.outputs) + read, launches=2)


_CHUNK_ELEMENTS, _MOST_BLOCKS = 65536, 320
_MOST_TENSORS = (110, 64, 48, 36, 30)
"""Elements per block, blocks per launch, and tensors per launch by lists (MultiTensorApply.cuh)."""


def _launches_of_lists(lists: int, tensors: Sequence[RecordedTensor]) -> int:
    """Return how many launches process lists of tensors.

    >>> tensor = RecordedTensor(storage=0, shape=(65536,), strides=(1,), dtype="float32")
    >>> _launches_of_lists(1, [tensor] * 111)
    2
    """
    most_tensors = _MOST_TENSORS[min(max(lists, 1), len(_MOST_TENSORS)) - 1]
    blocks = sum(ceil(prod(tensor.shape) / _CHUNK_ELEMENTS) for tensor in tensors)
    return max(1, ceil(len(tensors) / most_tensors), ceil(blocks / _MOST_BLOCKS))


def _listed(operation: Operation) -> Moved:
    """Count ``_foreach_*``; an in-place one writes its first list."""
    large = [tensor for tensor in operation.inputs if tensor.shape]
    lists = _lists(operation.name)
    first = large[: max(1, len(large) // lists)]
    written = list(operation.outputs) or first
    is_written_only = _base_name(operation.name) == "aten::_foreach_zero"
    return Moved(
        read=0 if is_written_only else sizes_of(large),
        written=sizes_of(written),
        launches=_launches_of_lists(lists + bool(operation.outputs), first),
    )


def _lists(name: str) -> int:
    """Return how many lists of tensors an operation reads.

    >>> _lists("aten::_foreach_addcdiv_.ScalarList"), _lists("aten::_foreach_mul_.Tensor")
    (3, 1)
    """
    base, overload = _base_name(name), name.partition(".")[2]
    if "addc" in base:
        return 3
    return 1 + ("lerp" in base) + (overload == "List")


def _listed_copy(operation: Operation) -> Moved:
    """Count ``_foreach_copy_``: first half written, second half read."""
    half = len(operation.inputs) // 2
    target, source = operation.inputs[:half], operation.inputs[half:]
    return Moved(
        read=sizes_of(source),
        written=sizes_of(target),
        launches=_launches_of_lists(2, target),
    )


def _fused_update(written_lists: int) -> Callable[[Operation], Moved]:
    """Return the rule of a fused optimizer.

    It reads all lists of tensors and writes ``written_lists`` of them, parameters and states, but
    not the gradients (FusedAdamKernel.cu, fused_adam_utils.cuh).
    """

    def moved(operation: Operation) -> Moved:
        large = [tensor for tensor in operation.inputs if tensor.shape]
        lists = written_lists + 1
        count = max(1, len(large) // lists)
        gradients = large[count : 2 * count]
        read = sizes_of(large)
        return Moved(
            read=read,
            written=read - sizes_of(gradients),
            launches=_launches_of_lists(lists, large[:count]) + 1,
        )

    return moved


_NOTHING = frozenset(
    f"aten::{name}"
    for name in (
        "_efficientzerotensor",
        "_nested_view_from_buffer",
        "_reshape_alias",
        "_unsafe_view",
        "alias",
        "as_strided",
        "detach",
        "empty",
        "empty_like",
        "empty_strided",
        "expand",
        "is_pinned",
        "lift_fresh",
        "new_empty",
        "new_empty_strided",
        "permute",
        "record_stream",
        "resize",
        "set",
        "squeeze",
        "t",
        "transpose",
        "unsqueeze",
        "view",
        "view_as",
        "view_as_complex",
        "view_as_real",
    )
) | {"prim::device", "fsdp::set"}
"""Operations that run no kernel: views, and uninitialised memory."""

_ELEMENTWISE = _Rule(label="elementwise", moved=_single_pass)
_COPY = _Rule(label="copy", moved=_single_pass)
_FILL = _Rule(label="fill", moved=_only_written)
_RANDOM = _Rule(label="random numbers", moved=_only_written)
_REDUCTION = _Rule(label="reduction", moved=_single_pass, is_reduction=True)
_NORM = _Rule(label="norm", moved=_single_pass, is_reduction=True)
# LayerNormBackwardKernelImplInternal: one kernel for the input's gradient, one for the weights'
# (layer_norm_kernel.cu); batch norms read once for the statistics (Normalization.cuh).
_NORM_TWICE = _Rule(label="norm", moved=_passes(2, launches=2), is_reduction=True)
_FSDP = _Rule(label="FSDP copies", moved=_moved_over)
_OPTIMIZER = _Rule(label="optimizer", moved=_listed)


def _rules(rule: _Rule, names: str) -> dict[str, _Rule]:
    return {f"aten::{name}": rule for name in names.split()}


_RULES = {
    **_rules(
        _ELEMENTWISE,
        "abs add addcdiv addcmul bitwise_and bitwise_not bitwise_or bitwise_xor ceil celu clamp "
        "clamp_max clamp_min conj copysign cos cosh div elu eq erf erfc exp exp2 expm1 floor "
        "floor_divide fmod frac ge gelu gelu_backward glu glu_backward gt hardsigmoid hardswish "
        "hardswish_backward hardtanh hardtanh_backward isfinite isinf isnan le leaky_relu "
        "leaky_relu_backward lerp log log10 log1p log2 log_sigmoid_forward log_sigmoid_backward "
        "logical_and logical_not logical_or logical_xor logit lt masked_fill maximum minimum mish "
        "mish_backward mse_loss mse_loss_backward mul nan_to_num native_dropout "
        "native_dropout_backward ne neg polar pow prelu reciprocal relu remainder round rsqrt rsub "
        "sgn sigmoid sigmoid_backward sign silu silu_backward sin sinh softplus softplus_backward "
        "sqrt square sub tan tanh tanh_backward threshold threshold_backward tril triu trunc where "
        "xlogy _amp_update_scale binary_cross_entropy_with_logits smooth_l1_loss huber_loss",
    ),
    **_rules(
        _COPY,
        "_to_copy cat clone contiguous expand_copy flip repeat repeat_interleave roll stack "
        "slice_scatter select_scatter narrow_copy permute_copy transpose_copy view_copy "
        "pixel_shuffle pixel_unshuffle",
    ),
    "aten::copy": replace(_COPY, moved=_replaced),
    **_rules(
        _FILL,
        "arange fill full full_like new_full new_ones new_zeros ones ones_like scalar_tensor zero "
        "zeros zeros_like linspace eye",
    ),
    **_rules(
        _RANDOM,
        "bernoulli exponential normal rand rand_like randint randint_like randn randn_like random "
        "uniform randperm",
    ),
    **_rules(
        _REDUCTION,
        "all amax amin aminmax any argmax argmin cummax cummin cumprod cumsum linalg_vector_norm "
        "logsumexp max mean median min nansum norm prod std std_mean sum var var_mean "
        "_amp_foreach_non_finite_check_and_unscale count_nonzero",
    ),
    **_rules(
        replace(_REDUCTION, label="pooling", is_reduction=False),
        "max_pool2d_with_indices max_pool2d_with_indices_backward avg_pool2d avg_pool2d_backward "
        "_adaptive_avg_pool2d _adaptive_avg_pool2d_backward upsample_nearest2d "
        "upsample_nearest2d_backward upsample_bilinear2d upsample_bilinear2d_backward",
    ),
    **_rules(_Rule(label="softmax", moved=_softmax, is_reduction=True), "_softmax _log_softmax"),
    **_rules(
        _Rule(label="softmax", moved=_softmax_gradient, is_reduction=True),
        "_softmax_backward_data _log_softmax_backward_data",
    ),
    **_rules(
        _NORM,
        "native_layer_norm _fused_rms_norm rms_norm batch_norm_stats batch_norm_elemt "
        "batch_norm_gather_stats_with_counts batch_norm_backward_reduce batch_norm_backward_elemt",
    ),
    **_rules(
        _NORM_TWICE,
        "native_layer_norm_backward _fused_rms_norm_backward native_batch_norm cudnn_batch_norm "
        "native_batch_norm_backward cudnn_batch_norm_backward batch_norm_backward "
        "native_group_norm native_group_norm_backward _native_batch_norm_legit miopen_batch_norm "
        "_batch_norm_with_update",
    ),
    **_rules(
        _Rule(label="gather", moved=_gathered),
        "gather index index_select take take_along_dim masked_select",
    ),
    **_rules(
        _Rule(label="scatter", moved=_scattered),
        "index_add index_copy index_put _index_put_impl _unsafe_index_put scatter scatter_add "
        "scatter_reduce masked_scatter index_fill",
    ),
    "aten::embedding": _Rule(label="embedding", moved=_gathered),
    **_rules(
        _Rule(label="embedding", moved=_embedding_gradient),
        "embedding_dense_backward embedding_backward",
    ),
    **_rules(_Rule(label="embedding", moved=_bags), "_embedding_bag _embedding_bag_forward_only"),
    **_rules(
        _Rule(label="embedding", moved=_bags_gradient),
        "_embedding_bag_backward _embedding_bag_dense_backward",
    ),
    **_rules(_Rule(label="loss", moved=_loss), "nll_loss_forward nll_loss2d_forward nll_loss"),
    **_rules(_Rule(label="loss", moved=_loss_gradient), "nll_loss_backward nll_loss2d_backward"),
    **_rules(
        _Rule(label="copy", moved=_padded),
        "constant_pad_nd slice_backward select_backward unfold_backward",
    ),
    "aten::_foreach_copy": _Rule(label="FSDP copies", moved=_listed_copy),
    **_rules(_Rule(label="optimizer", moved=_fused_update(3)), "_fused_adamw _fused_adam"),
    "aten::_fused_sgd": _Rule(label="optimizer", moved=_fused_update(2)),
    "aten::_fused_adagrad": _Rule(label="optimizer", moved=_fused_update(2)),
    "aten::split_with_sizes_copy": _FSDP,
    "aten::_chunk_cat": _Rule(label="FSDP copies", moved=_concatenated_chunks),
    "fsdp::all_gather_copy_in": _FSDP,
    "fsdp::split_with_sizes_copy": _FSDP,
    "fsdp::chunk_cat": _Rule(label="FSDP copies", moved=_concatenated_chunks),
    "fsdp::copy": replace(_COPY, moved=_replaced),
}
"""Rules by name, without overload and in-place mark."""
