"""A head folded into a stock class: the layers of both matched, the parameters mapped, the result proven."""
