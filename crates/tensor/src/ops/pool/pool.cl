/* Pooling of images that are stored as (N, H, W, C). Sums are f32.
 *
 * Along an axis of `in` pixels window o of `out` starts at first(o): o * stride - padding, or o * in / out if windows are adaptive, which then
 * end at ceil((o + 1) * in / out).
 * pool_max_fwd(x, y, index, ..)   y = the maximum of a window, NaN if it contains one; index: int, row * W + column of the maximum's
 *                                 pixel, the first of equal ones. Padding is ignored.
 * pool_max_bwd(index, dy, dx, ..) dx = sum of dy over the windows whose index is the pixel.
 * pool_avg_fwd(x, y, ..)          y = sum of a window / its number of pixels, which includes the padding if include_pad is 1.
 * pool_avg_bwd(dy, dx, ..)        dx = sum over the windows of a pixel of dy / their number of pixels.
 * x, dx (N, in_h, in_w, C) T; y, dy, index (N, out_h, out_w, C).
 * Items of dimension 0 process every get_global_size(0)-th vector of channels, those of dimension 1 pixels of the output. Every element has one
 * owner. Tuned: VW, WG.
 * Ceiling: x read and y written once.
 */
#define SIZES                                                                                                            \
  long pixels, int c, int in_h, int in_w, int out_h, int out_w, int size_h, int size_w, int stride_h, int stride_w, int pad_h, \
      int pad_w, int step_h, int step_w, int adaptive, int include_pad
#define EACH_VECTOR for (ulong at = get_global_id(0) * VW; at < (ulong)c; at += get_global_size(0) * VW)
#define CHANNELS(p, at) ((at) + VW <= (ulong)c ? LDV(p, at) : load_part((p) + (at), c - (at)))
#define STORE(p, at, v)                     \
  if ((at) + VW <= (ulong)c) STV(p, at, v); \
  else store_part((p) + (at), v, c - (at));

static inline int first_of(int o, int in, int out, int stride, int pad, int adaptive) {
  return adaptive ? (int)((long)o * in / out) : o * stride - pad;
}
/* Returns one past the last pixel of a window for averages, including the padding. */
static inline int end_of(int o, int in, int out, int size, int stride, int pad, int adaptive) {
  return adaptive ? (int)(((long)(o + 1) * in + out - 1) / out) : min(o * stride - pad + size, in + pad);
}
/* Returns the range [x, y) of windows that may contain a pixel. `reach` is the span of a window. */
static inline int2 windows_of(int h, int in, int out, int reach, int stride, int pad, int adaptive) {
  if (adaptive) return (int2)((int)((long)h * out / in), (int)(((long)(h + 1) * out + in - 1) / in));
  const int low = h + pad - reach + 1;
  return (int2)(low <= 0 ? 0 : (low + stride - 1) / stride, min(out, (h + pad) / stride + 1));
}

__kernel void pool_max_fwd(__global const T *restrict x, __global T *restrict y, __global int *restrict index, SIZES) {
  FOR_ROWS(p, pixels, 1) {
    const int o_x = p % out_w, o_y = p / out_w % out_h;
    const long n = p / out_w / out_h;
    const int h0 = first_of(o_y, in_h, out_h, stride_h, pad_h, adaptive), w0 = first_of(o_x, in_w, out_w, stride_w, pad_w, adaptive);
    const int h1 = adaptive ? end_of(o_y, in_h, out_h, 0, 0, 0, 1) : min(in_h, h0 + (size_h - 1) * step_h + 1);
    const int w1 = adaptive ? end_of(o_x, in_w, out_w, 0, 0, 0, 1) : min(in_w, w0 + (size_w - 1) * step_w + 1);
    EACH_VECTOR {
      FV best = (FV)(-INFINITY);
      IV where = (IV)(-1);
      for (int h = h0; h < h1; h += step_h) {
        if (h < 0) continue;
        for (int w = w0; w < w1; w += step_w) {
          if (w < 0) continue;
          const FV v = CHANNELS(x + ((n * in_h + h) * in_w + w) * c, at);
          const IV better = (v > best) || (v != v) || (where < 0);
          best = better ? v : best;
          where = better ? (IV)(h * in_w + w) : where;
        }
      }
      STORE(y + p * c, at, best)
      int lanes[VW];
      STV_F32(lanes, where);
      for (int v = 0; v < VW && at + v < (ulong)c; ++v) index[p * c + at + v] = lanes[v];
    }
  }
}

__kernel void pool_max_bwd(__global const int *restrict index, __global const T *restrict dy, __global T *restrict dx, SIZES) {
  FOR_ROWS(p, pixels, 1) {
    const int w = p % in_w, h = p / in_w % in_h, here = h * in_w + w;
    const long n = p / in_w / in_h;
    const int2 down = windows_of(h, in_h, out_h, (size_h - 1) * step_h + 1, stride_h, pad_h, adaptive);
    const int2 across = windows_of(w, in_w, out_w, (size_w - 1) * step_w + 1, stride_w, pad_w, adaptive);
    EACH_VECTOR {
      FV sum = (FV)(0.0f);
      for (int o_y = down.x; o_y < down.y; ++o_y)
        for (int o_x = across.x; o_x < across.y; ++o_x) {
          const long o = ((n * out_h + o_y) * out_w + o_x) * c;
          int lanes[VW];
          for (int v = 0; v < VW; ++v) lanes[v] = at + v < (ulong)c ? index[o + at + v] : -1;
          const IV where = LDV_F32(lanes);
          const FV g = CHANNELS(dy + o, at);
          sum += where == here ? g : (FV)(0.0f);
        }
      STORE(dx + p * c, at, sum)
    }
  }
}

/* Returns the number of pixels of a window's side from `first` to `end`; without include_pad only those within the image count. */
static inline int counted(int first, int end, int in, int include_pad) {
  return include_pad ? end - first : min(end, in) - max(first, 0);
}

__kernel void pool_avg_fwd(__global const T *restrict x, __global T *restrict y, SIZES) {
  FOR_ROWS(p, pixels, 1) {
    const int o_x = p % out_w, o_y = p / out_w % out_h;
    const long n = p / out_w / out_h;
    const int h0 = first_of(o_y, in_h, out_h, stride_h, pad_h, adaptive), w0 = first_of(o_x, in_w, out_w, stride_w, pad_w, adaptive);
    const int h1 = end_of(o_y, in_h, out_h, size_h, stride_h, pad_h, adaptive);
    const int w1 = end_of(o_x, in_w, out_w, size_w, stride_w, pad_w, adaptive);
    const float count = (float)(counted(h0, h1, in_h, include_pad) * counted(w0, w1, in_w, include_pad));
    EACH_VECTOR {
      FV sum = (FV)(0.0f);
      for (int h = max(h0, 0); h < min(h1, in_h); ++h)
        for (int w = max(w0, 0); w < min(w1, in_w); ++w) sum += CHANNELS(x + ((n * in_h + h) * in_w + w) * c, at);
      STORE(y + p * c, at, sum / count)
    }
  }
}

__kernel void pool_avg_bwd(__global const T *restrict dy, __global T *restrict dx, SIZES) {
  FOR_ROWS(p, pixels, 1) {
    const int w = p % in_w, h = p / in_w % in_h;
    const long n = p / in_w / in_h;
    const int2 down = windows_of(h, in_h, out_h, size_h, stride_h, pad_h, adaptive);
    const int2 across = windows_of(w, in_w, out_w, size_w, stride_w, pad_w, adaptive);
    EACH_VECTOR {
      FV sum = (FV)(0.0f);
      for (int o_y = down.x; o_y < down.y; ++o_y) {
        const int h0 = first_of(o_y, in_h, out_h, stride_h, pad_h, adaptive);
        const int rows = counted(h0, end_of(o_y, in_h, out_h, size_h, stride_h, pad_h, adaptive), in_h, include_pad);
        for (int o_x = across.x; o_x < across.y; ++o_x) {
          const int w0 = first_of(o_x, in_w, out_w, stride_w, pad_w, adaptive);
          const int columns = counted(w0, end_of(o_x, in_w, out_w, size_w, stride_w, pad_w, adaptive), in_w, include_pad);
          sum += CHANNELS(dy + ((n * out_h + o_y) * out_w + o_x) * c, at) / (float)(rows * columns);
        }
      }
      STORE(dx + p * c, at, sum)
    }
  }
}
