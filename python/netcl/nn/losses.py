"""Losses as layers. Arguments are those of PyTorch, including ``size_average`` and ``reduce``, which select the reduction."""

from __future__ import annotations

from typing import Any, Callable, Optional, Union

from .. import functional as F
from .._netcl import Tensor
from ..errors import UnsupportedError
from ..functional._common import legacy
from .linear import Linear, PairwiseDistance
from .module import Module

Flag = Optional[bool]


class _Loss(Module):
    """A loss with a reduction: mean, sum or none."""

    def __init__(self, size_average: Flag = None, reduce: Flag = None, reduction: str = "mean") -> None:
        super().__init__()
        self.reduction = legacy(size_average, reduce, reduction)


class _WeightedLoss(_Loss):
    """A loss with a weight for each class or element, which is a buffer."""

    def __init__(self, weight: Optional[Tensor] = None, size_average: Flag = None, reduce: Flag = None, reduction: str = "mean") -> None:
        super().__init__(size_average, reduce, reduction)
        self.register_buffer("weight", weight)


class _PairLoss(_Loss):
    """A loss of two tensors."""

    _function = ""

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Returns the loss."""
        made: Tensor = getattr(F, self._function)(input, target, reduction=self.reduction)
        return made


class MSELoss(_PairLoss):
    """Squared differences."""

    _function = "mse_loss"


class L1Loss(_PairLoss):
    """Absolute differences."""

    _function = "l1_loss"


class SoftMarginLoss(_PairLoss):
    """``log(1 + e^(-target x))`` with targets 1 and -1."""

    _function = "soft_margin_loss"


class MultiLabelMarginLoss(_PairLoss):
    """Margins of 1 between the scores of target classes and others. A row of targets ends at the first -1."""

    _function = "multilabel_margin_loss"


class CrossEntropyLoss(_WeightedLoss):
    """Cross entropy of logits (C), (N, C) or (N, C, ..) and class indices or probabilities, as in ``functional.cross_entropy``."""

    def __init__(
        self,
        weight: Optional[Tensor] = None,
        size_average: Flag = None,
        ignore_index: int = -100,
        reduce: Flag = None,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__(weight, size_average, reduce, reduction)
        self.ignore_index, self.label_smoothing = ignore_index, label_smoothing

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Returns the loss."""
        return F.cross_entropy(input, target, self.weight, None, self.ignore_index, None, self.reduction, self.label_smoothing)


class NLLLoss(_WeightedLoss):
    """Negative log likelihood of log probabilities (C), (N, C) or (N, C, ..) and class indices."""

    def __init__(
        self, weight: Optional[Tensor] = None, size_average: Flag = None, ignore_index: int = -100, reduce: Flag = None, reduction: str = "mean"
    ) -> None:
        super().__init__(weight, size_average, reduce, reduction)
        self.ignore_index = ignore_index

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Returns the loss."""
        return F.nll_loss(input, target, self.weight, None, self.ignore_index, None, self.reduction)


class BCELoss(_WeightedLoss):
    """Cross entropy of probabilities and targets from 0 to 1."""

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Returns the loss."""
        return F.binary_cross_entropy(input, target, self.weight, reduction=self.reduction)


class BCEWithLogitsLoss(_Loss):
    """Binary cross entropy of logits and probabilities of equal shape, in a numerically stable form."""

    def __init__(
        self,
        weight: Optional[Tensor] = None,
        size_average: Flag = None,
        reduce: Flag = None,
        reduction: str = "mean",
        pos_weight: Optional[Tensor] = None,
    ) -> None:
        super().__init__(size_average, reduce, reduction)
        self.register_buffer("weight", weight)
        self.register_buffer("pos_weight", pos_weight)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Returns the loss."""
        return F.binary_cross_entropy_with_logits(input, target, self.weight, reduction=self.reduction, pos_weight=self.pos_weight)


class MultiLabelSoftMarginLoss(_WeightedLoss):
    """Mean over the last axis of the binary cross entropies of logits (.., C)."""

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Returns the loss."""
        return F.multilabel_soft_margin_loss(input, target, self.weight, reduction=self.reduction)


class MultiMarginLoss(_WeightedLoss):
    """Excess of the scores of other classes over that of the target minus ``margin``, to the power ``p``."""

    def __init__(
        self,
        p: int = 1,
        margin: float = 1.0,
        weight: Optional[Tensor] = None,
        size_average: Flag = None,
        reduce: Flag = None,
        reduction: str = "mean",
    ) -> None:
        super().__init__(weight, size_average, reduce, reduction)
        if p not in (1, 2) or weight is not None and weight.ndim != 1:
            raise ValueError(f"MultiMarginLoss: p is {p}, expected 1 or 2, and a weight (C)")
        self.p, self.margin = p, margin

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Returns the loss."""
        return F.multi_margin_loss(input, target, self.p, self.margin, self.weight, reduction=self.reduction)


class SmoothL1Loss(_Loss):
    """Half the squared difference divided by ``beta`` up to ``beta``, and a line beyond."""

    def __init__(self, size_average: Flag = None, reduce: Flag = None, reduction: str = "mean", beta: float = 1.0) -> None:
        super().__init__(size_average, reduce, reduction)
        self.beta = beta

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Returns the loss."""
        return F.smooth_l1_loss(input, target, reduction=self.reduction, beta=self.beta)


class HuberLoss(_Loss):
    """Half the squared difference up to ``delta``, and a line beyond."""

    def __init__(self, reduction: str = "mean", delta: float = 1.0) -> None:
        super().__init__(reduction=reduction)
        self.delta = delta

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Returns the loss."""
        return F.huber_loss(input, target, self.reduction, self.delta)


class KLDivLoss(_Loss):
    """Kullback-Leibler divergence of log probabilities from targets. The reduction ``batchmean`` divides by the size of the first axis."""

    def __init__(self, size_average: Flag = None, reduce: Flag = None, reduction: str = "mean", log_target: bool = False) -> None:
        super().__init__(size_average, reduce, reduction)
        self.log_target = log_target

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Returns the loss."""
        return F.kl_div(input, target, reduction=self.reduction, log_target=self.log_target)


class PoissonNLLLoss(_Loss):
    """Negative log likelihood of counts with a Poisson distribution."""

    def __init__(
        self, log_input: bool = True, full: bool = False, size_average: Flag = None, eps: float = 1e-8, reduce: Flag = None, reduction: str = "mean"
    ) -> None:
        super().__init__(size_average, reduce, reduction)
        self.log_input, self.full, self.eps = log_input, full, eps

    def forward(self, log_input: Tensor, target: Tensor) -> Tensor:
        """Returns the loss."""
        return F.poisson_nll_loss(log_input, target, self.log_input, self.full, None, self.eps, None, self.reduction)


class GaussianNLLLoss(_Loss):
    """Negative log likelihood of targets with a normal distribution."""

    def __init__(self, *, full: bool = False, eps: float = 1e-6, reduction: str = "mean") -> None:
        super().__init__(reduction=reduction)
        self.full, self.eps = full, eps

    def forward(self, input: Tensor, target: Tensor, var: Union[Tensor, float]) -> Tensor:
        """Returns the loss."""
        return F.gaussian_nll_loss(input, target, var, self.full, self.eps, self.reduction)


class HingeEmbeddingLoss(_Loss):
    """``x`` for targets 1 and ``max(margin - x, 0)`` for targets -1."""

    def __init__(self, margin: float = 1.0, size_average: Flag = None, reduce: Flag = None, reduction: str = "mean") -> None:
        super().__init__(size_average, reduce, reduction)
        self.margin = margin

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Returns the loss."""
        return F.hinge_embedding_loss(input, target, self.margin, reduction=self.reduction)


class CosineEmbeddingLoss(_Loss):
    """``1 - cos(x1, x2)`` for targets 1 and ``max(cos(x1, x2) - margin, 0)`` for targets -1."""

    def __init__(self, margin: float = 0.0, size_average: Flag = None, reduce: Flag = None, reduction: str = "mean") -> None:
        super().__init__(size_average, reduce, reduction)
        self.margin = margin

    def forward(self, input1: Tensor, input2: Tensor, target: Tensor) -> Tensor:
        """Returns the loss."""
        return F.cosine_embedding_loss(input1, input2, target, self.margin, reduction=self.reduction)


class MarginRankingLoss(_Loss):
    """``max(-target (x1 - x2) + margin, 0)``."""

    def __init__(self, margin: float = 0.0, size_average: Flag = None, reduce: Flag = None, reduction: str = "mean") -> None:
        super().__init__(size_average, reduce, reduction)
        self.margin = margin

    def forward(self, input1: Tensor, input2: Tensor, target: Tensor) -> Tensor:
        """Returns the loss."""
        return F.margin_ranking_loss(input1, input2, target, self.margin, reduction=self.reduction)


class TripletMarginLoss(_Loss):
    """``max(d(anchor, positive) - d(anchor, negative) + margin, 0)`` with p-norms."""

    def __init__(
        self,
        margin: float = 1.0,
        p: float = 2.0,
        eps: float = 1e-6,
        swap: bool = False,
        size_average: Flag = None,
        reduce: Flag = None,
        reduction: str = "mean",
    ) -> None:
        super().__init__(size_average, reduce, reduction)
        if margin <= 0:
            raise ValueError(f"TripletMarginLoss: margin is {margin}, expected more than 0")
        self.margin, self.p, self.eps, self.swap = margin, p, eps, swap

    def forward(self, anchor: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        """Returns the loss."""
        return F.triplet_margin_loss(anchor, positive, negative, self.margin, self.p, self.eps, self.swap, reduction=self.reduction)


class TripletMarginWithDistanceLoss(_Loss):
    """``max(d(anchor, positive) - d(anchor, negative) + margin, 0)`` with a function of two tensors."""

    def __init__(
        self, *, distance_function: Optional[Callable[[Tensor, Tensor], Tensor]] = None, margin: float = 1.0, swap: bool = False, reduction: str = "mean"
    ) -> None:
        super().__init__(reduction=reduction)
        if margin <= 0:
            raise ValueError(f"TripletMarginWithDistanceLoss: margin is {margin}, expected more than 0")
        self.distance_function: Any = PairwiseDistance() if distance_function is None else distance_function
        self.margin, self.swap = margin, swap

    def forward(self, anchor: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        """Returns the loss."""
        return F.triplet_margin_with_distance_loss(
            anchor, positive, negative, distance_function=self.distance_function, margin=self.margin, swap=self.swap, reduction=self.reduction
        )


class CTCLoss(_Loss):
    """Negative log likelihood of texts, summed over all alignments. See ``functional.ctc_loss``."""

    def __init__(self, blank: int = 0, reduction: str = "mean", zero_infinity: bool = False) -> None:
        super().__init__(reduction=reduction)
        self.blank, self.zero_infinity = blank, zero_infinity

    def forward(self, log_probs: Tensor, targets: Tensor, input_lengths: Any, target_lengths: Any) -> Tensor:
        """Returns the loss."""
        return F.ctc_loss(log_probs, targets, input_lengths, target_lengths, self.blank, self.reduction, self.zero_infinity)


class LinearCrossEntropyLoss(_Loss):
    """A linear layer followed by the cross entropy, which never stores all logits at once."""

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        *,
        out_features: Any = (),
        bias: bool = False,
        device: Any = None,
        dtype: Any = None,
        reduction: str = "mean",
        weight: Optional[Tensor] = None,
        ignore_index: Optional[int] = None,
        label_smoothing: float = 0.0,
        options: Any = None,
    ) -> None:
        super().__init__(reduction=reduction)
        if tuple(out_features) or options is not None:
            raise UnsupportedError("LinearCrossEntropyLoss: out_features and options are not supported; write nn.Linear and nn.CrossEntropyLoss")
        self.linear = Linear(in_features, num_classes, bias, device, dtype)
        self.register_buffer("weight", weight)
        self.ignore_index, self.label_smoothing = ignore_index, label_smoothing

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Returns the loss."""
        return F.linear_cross_entropy(
            input, self.linear.weight, target, linear_bias=self.linear.bias, weight=self.weight, reduction=self.reduction, ignore_index=self.ignore_index,
            label_smoothing=self.label_smoothing,
        )  # fmt: skip


__all__ = [
    "BCELoss", "BCEWithLogitsLoss", "CTCLoss", "CosineEmbeddingLoss", "CrossEntropyLoss", "GaussianNLLLoss", "HingeEmbeddingLoss", "HuberLoss", "KLDivLoss", "L1Loss",
    "LinearCrossEntropyLoss", "MSELoss", "MarginRankingLoss", "MultiLabelMarginLoss", "MultiLabelSoftMarginLoss", "MultiMarginLoss", "NLLLoss",
    "PoissonNLLLoss", "SmoothL1Loss", "SoftMarginLoss", "TripletMarginLoss", "TripletMarginWithDistanceLoss",
]  # fmt: skip
