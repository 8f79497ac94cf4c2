/* Gated activation (Shazeer 2020): y = act(g) * u, where a row of x is g, then u.
 *
 * gated_fwd   x (rows, 2N) T → y (rows, N) T
 * gated_bwd   x, dy (rows, N) T → dx (rows, 2N) T: dg = act'(g) * u * dy, du = act(g) * dy
 * ACT         the activation: 0 SiLU (SwiGLU), 1 GELU by its tanh approximation (GeGLU), 2 GELU, 3 ReLU (ReGLU). Arithmetic is f32.
 * Items of dimension 0 process every get_global_size(0)-th vector of a row, those of dimension 1 rows. Elements after the last whole vector of a
 * row are processed one by one. One work-item writes each element.
 *
 * Ceiling: bandwidth of a copy, with x (and dy) read and the result written once.
 */
/* Returns the gradient of x from that of the activation. If ReLU is 0, it is 0 even if the incoming gradient is not finite. */
#if ACT == 3
#define THROUGH(x, slope, d) ((x) <= 0.0f ? (FV)(0.0f) : (d))
#else
#define THROUGH(x, slope, d) ((d) * (slope))
#endif

/* Vectors of a row of n elements that this item owns, each with its number of valid lanes. */
#define FOR_VECTORS(i, lanes, n)                                                                                  \
  for (ulong i = get_global_id(0) * VW, lanes = min((ulong)VW, (n)-min(i, (ulong)(n))); i < (n);                  \
       i += get_global_size(0) * VW, lanes = min((ulong)VW, (n)-min(i, (ulong)(n))))

static inline FV load_lanes(__global const T *p, ulong i, ulong lanes) {
  return lanes == VW ? LDV(p, i) : load_part(p + i, lanes);
}
static inline void store_lanes(__global T *p, ulong i, FV v, ulong lanes) {
  if (lanes == VW) STV(p, i, v);
  else store_part(p + i, v, lanes);
}

__kernel void gated_fwd(__global const T *restrict x, __global T *restrict y, ulong rows, ulong n) {
  FOR_ROWS(row, rows, 1) {
    __global const T *g = x + row * 2 * n, *u = g + n;
    FOR_VECTORS(i, lanes, n) {
      FV slope;
      const FV a = activation(load_lanes(g, i, lanes), &slope);
      store_lanes(y + row * n, i, a * load_lanes(u, i, lanes), lanes);
    }
  }
}

__kernel void gated_bwd(__global const T *restrict x, __global const T *restrict dy, __global T *restrict dx, ulong rows, ulong n) {
  FOR_ROWS(row, rows, 1) {
    __global const T *g = x + row * 2 * n, *u = g + n;
    __global T *dg = dx + row * 2 * n, *du = dg + n;
    FOR_VECTORS(i, lanes, n) {
      FV slope;
      const FV gate = load_lanes(g, i, lanes), d = load_lanes(dy + row * n, i, lanes), a = activation(gate, &slope);
      store_lanes(dg, i, THROUGH(gate, slope, load_lanes(u, i, lanes) * d), lanes);
      store_lanes(du, i, a * d, lanes);
    }
  }
}
