// Compares every function of the driver with the same formula in double: forward, backward, optimizer, padding, and NULL for gradients that
// are not needed. The first argument is the device [default: auto].
#include "check.h"

static void *up(const void *data, size_t bytes) {
  void *buffer = allocate_gpu_memory(0, bytes);
  CHECK(buffer != NULL);
  if (data) CHECK(write_host_to_gpu_blocking(0, buffer, 0, bytes, data) == 1);
  return buffer;
}

static float *floats(size_t n) {
  float *out = malloc(n * sizeof *out);
  for (size_t i = 0; i < n; i++) out[i] = random_float();
  return out;
}

// Compares a buffer with the expected values, and frees both.
static void same(const char *what, void *buffer, double *expected, size_t n) {
  float *got = calloc(n, sizeof *got);
  CHECK(read_gpu_to_host_blocking(0, buffer, 0, n * sizeof *got, got) == 1);
  double worst = 0;
  for (size_t i = 0; i < n; i++) {
    double off = fabs(got[i] - expected[i]) / (1 + fabs(expected[i]));
    if (!(off <= worst)) worst = off;
  }
  if (!(worst <= 2e-5)) {
    failures++;
    fprintf(stderr, "%s: off by %g: %s\n", what, worst, netcl_last_error());
  }
  free_gpu_memory(0, buffer);
  free(got);
  free(expected);
}

static double *doubles(size_t n) { return calloc(n, sizeof(double)); }

static void products(void) {
  enum { B = 3, M = 5, N = 7, K = 4 };
  for (int batched = 0; batched < 2; batched++) {
    size_t na = B * M * K, nb = (batched ? B : 1) * K * N, nc = B * M * N;
    float *a = floats(na), *b = floats(nb), *dc = floats(nc);
    double *c = doubles(nc), *da = doubles(na), *db = doubles(nb);
    for (int s = 0; s < B; s++)
      for (int m = 0; m < M; m++)
        for (int n = 0; n < N; n++)
          for (int k = 0; k < K; k++) {
            size_t ia = (s * M + m) * K + k, ib = ((batched ? s : 0) * K + k) * N + n, ic = (s * M + m) * N + n;
            c[ic] += (double)a[ia] * b[ib];
            da[ia] += (double)dc[ic] * b[ib];
            db[ib] += (double)dc[ic] * a[ia];
          }
    void *ga = up(a, na * 4), *gb = up(b, nb * 4), *gdc = up(dc, nc * 4), *gc = up(NULL, nc * 4);
    void *gda = up(NULL, na * 4), *gdb = up(NULL, nb * 4);
    if (batched) {
      CHECK(execute_matmul_batched_on_gpu(0, ga, gb, gc, B, M, N, K) == 1);
      CHECK(execute_matmul_batched_backward_on_gpu(0, ga, gb, gdc, gda, NULL, B, M, N, K) == 1);
      CHECK(execute_matmul_batched_backward_on_gpu(0, ga, gb, gdc, NULL, gdb, B, M, N, K) == 1);
    } else {
      CHECK(execute_matmul_on_gpu(0, ga, gb, gc, B, M, N, K) == 1);
      CHECK(execute_matmul_backward_on_gpu(0, ga, gb, gdc, gda, NULL, B, M, N, K) == 1);
      CHECK(execute_matmul_backward_on_gpu(0, ga, gb, gdc, gda, gdb, B, M, N, K) == 1);
    }
    CHECK(execute_matmul_on_gpu(0, ga, gb, gc, B, M, 1000, K) == 0 && strstr(netcl_last_error(), "does not fit"));
    same(batched ? "matmul_batched" : "matmul", gc, c, nc);
    same("da", gda, da, na);
    same("db", gdb, db, nb);
    free_gpu_memory(0, ga), free_gpu_memory(0, gb), free_gpu_memory(0, gdc);
    free(a), free(b), free(dc);
  }
}

static double gelu(double x) { return 0.5 * x * (1 + erf(x / sqrt(2))); }

static void elements(void) {
  enum { N = 1003 };
  float *a = floats(N), *b = floats(N), *dy = floats(N);
  for (int i = 0; i < N; i++) a[i] *= 4;
  double *sum = doubles(N), *product = doubles(N), *act = doubles(N), *dact = doubles(N), *da = doubles(N), *db = doubles(N);
  for (int i = 0; i < N; i++) {
    double x = a[i], pdf = exp(-x * x / 2) / sqrt(2 * M_PI);
    sum[i] = x + b[i], product[i] = x * b[i], act[i] = gelu(x);
    dact[i] = dy[i] * (0.5 * (1 + erf(x / sqrt(2))) + x * pdf);
    da[i] = (double)dy[i] * b[i], db[i] = (double)dy[i] * a[i];
  }
  void *ga = up(a, N * 4), *gb = up(b, N * 4), *gdy = up(dy, N * 4), *out[6];
  for (int i = 0; i < 6; i++) out[i] = up(NULL, N * 4);
  CHECK(execute_add_on_gpu(0, ga, gb, out[0], N) == 1);
  CHECK(execute_mul_on_gpu(0, ga, gb, out[1], N) == 1);
  CHECK(execute_gelu_on_gpu(0, ga, out[2], N) == 1);
  CHECK(execute_gelu_backward_on_gpu(0, ga, gdy, out[3], N) == 1);
  CHECK(execute_mul_backward_on_gpu(0, gdy, ga, gb, out[4], NULL, N) == 1);
  CHECK(execute_mul_backward_on_gpu(0, gdy, ga, gb, NULL, out[5], N) == 1);
  CHECK(execute_mul_backward_on_gpu(0, gdy, ga, gb, NULL, NULL, N) == 1);
  same("add", out[0], sum, N), same("mul", out[1], product, N), same("gelu", out[2], act, N);
  same("gelu_backward", out[3], dact, N), same("mul_backward da", out[4], da, N), same("mul_backward db", out[5], db, N);
  // Run operations in place, and copy a part of a buffer.
  double *twice = doubles(N), *half = doubles(N / 2);
  for (int i = 0; i < N; i++) twice[i] = 2.0 * a[i];
  for (int i = 0; i < N / 2; i++) half[i] = 2.0 * a[i];
  CHECK(execute_add_on_gpu(0, ga, ga, ga, N) == 1);
  void *copy = up(NULL, N * 4);
  CHECK(execute_clone_on_gpu(0, ga, copy, N / 2 * 4) == 1);
  CHECK(execute_clone_on_gpu(0, ga, copy, N * 4 + 1) == 0);
  same("clone", copy, half, N / 2), same("add in place", ga, twice, N);
  free_gpu_memory(0, gb), free_gpu_memory(0, gdy);
  free(a), free(b), free(dy);
}

static void rows(void) {
  enum { R = 6, N = 37 };
  const double eps = 1e-5;
  float *x = floats(R * N), *dy = floats(R * N);
  for (int i = 0; i < R * N; i++) x[i] *= 5;
  double *soft = doubles(R * N), *dsoft = doubles(R * N), *logs = doubles(R * N), *norm = doubles(R * N), *dnorm = doubles(R * N);
  for (int r = 0; r < R; r++) {
    double top = -INFINITY, sum = 0, mean = 0, var = 0, dot = 0, sum_dy = 0, sum_dyx = 0;
    for (int i = 0; i < N; i++) top = fmax(top, x[r * N + i]), mean += x[r * N + i] / N;
    for (int i = 0; i < N; i++) sum += exp(x[r * N + i] - top), var += pow(x[r * N + i] - mean, 2) / N;
    for (int i = 0; i < N; i++) {
      int at = r * N + i;
      soft[at] = exp(x[at] - top) / sum, logs[at] = x[at] - top - log(sum), norm[at] = (x[at] - mean) / sqrt(var + eps);
      dot += dy[at] * soft[at], sum_dy += dy[at], sum_dyx += dy[at] * norm[at];
    }
    for (int i = 0; i < N; i++) {
      int at = r * N + i;
      dsoft[at] = (dy[at] - dot) * soft[at];
      dnorm[at] = (dy[at] - sum_dy / N - norm[at] * sum_dyx / N) / sqrt(var + eps);
    }
  }
  void *gx = up(x, R * N * 4), *gdy = up(dy, R * N * 4), *out[5];
  for (int i = 0; i < 5; i++) out[i] = up(NULL, R * N * 4);
  CHECK(execute_softmax_on_gpu(0, gx, out[0], R, N) == 1);
  CHECK(execute_softmax_backward_on_gpu(0, gdy, out[0], out[1], R, N) == 1);
  CHECK(execute_log_softmax_stable_gpu(0, gx, out[2], 2, R / 2, N) == 1);
  CHECK(execute_layernorm_on_gpu(0, gx, out[3], R, N, (float)eps) == 1);
  CHECK(execute_layernorm_backward_on_gpu(0, gdy, gx, out[4], R, N, (float)eps) == 1);
  same("softmax_backward", out[1], dsoft, R * N), same("softmax", out[0], soft, R * N), same("log_softmax", out[2], logs, R * N);
  same("layernorm", out[3], norm, R * N), same("layernorm_backward", out[4], dnorm, R * N);
  free_gpu_memory(0, gx), free_gpu_memory(0, gdy);
  free(x), free(dy);
}

static void axes(void) {
  enum { B = 2, X = 3, Y = 4, Z = 5, ALL = B * X * Y * Z };
  float *a = floats(ALL), *bias = floats(Z), *pe = floats(Y * Z);
  double *flat = doubles(ALL), *back = doubles(ALL), *last = doubles(ALL), *middle = doubles(ALL);
  double *biased = doubles(ALL), *placed = doubles(ALL), *sums = doubles(Z);
  for (int b = 0; b < B; b++)
    for (int x = 0; x < X; x++)
      for (int y = 0; y < Y; y++)
        for (int z = 0; z < Z; z++) {
          int at = ((b * X + x) * Y + y) * Z + z, row = at / (Y * Z), column = at % (Y * Z);
          flat[column * (B * X) + row] = a[at];
          back[at] = a[at];
          last[((b * X + x) * Z + z) * Y + y] = a[at];
          middle[((b * Y + y) * X + x) * Z + z] = a[at];
          biased[at] = (double)a[at] + bias[z], placed[at] = (double)a[at] + pe[y * Z + z], sums[z] += a[at];
        }
  void *ga = up(a, ALL * 4), *gbias = up(bias, Z * 4), *gpe = up(pe, Y * Z * 4), *out[7];
  for (int i = 0; i < 7; i++) out[i] = up(NULL, ALL * 4);
  CHECK(execute_transpose_on_gpu(0, ga, out[0], B * X, Y * Z) == 1);
  CHECK(execute_transpose_backward_on_gpu(0, out[0], out[1], B * X, Y * Z) == 1);
  CHECK(execute_transpose_batched_gpu(0, ga, out[2], B * X, Y, Z) == 1);
  CHECK(execute_transpose_12_batched_gpu(0, ga, out[3], B, X, Y, Z) == 1);
  CHECK(execute_broadcast_add_gpu(0, ga, gbias, out[4], B, X * Y, Z) == 1);
  CHECK(execute_add_broadcast_pe_gpu(0, ga, gpe, out[5], B * X, Y, Z) == 1);
  CHECK(execute_reduce_sum_gpu(0, ga, out[6], B, X * Y, Z) == 1);
  same("transpose", out[0], flat, ALL), same("transpose_backward", out[1], back, ALL), same("transpose_batched", out[2], last, ALL);
  same("transpose_12", out[3], middle, ALL), same("broadcast_add", out[4], biased, ALL), same("add_broadcast_pe", out[5], placed, ALL);
  same("reduce_sum", out[6], sums, Z);
  free_gpu_memory(0, ga), free_gpu_memory(0, gbias), free_gpu_memory(0, gpe);
  free(a), free(bias), free(pe);
}

static void lookups(void) {
  enum { B = 2, S = 6, D = 5, V = 9 };
  const int ids[B * S] = {3, 0, 8, 3, -1, 3, 9, 1, 0, -100, 2147483647, 7}; // some are out of range: padding
  float *w = floats(V * D), *dy = floats(B * S * D), *before = floats(V * D), *logits = floats(B * S * V);
  double *rows = doubles(B * S * D), *dw = doubles(V * D), *loss = doubles(B * S), *dlogits = doubles(B * S * V);
  for (int i = 0; i < V * D; i++) dw[i] = before[i];
  for (int i = 0; i < B * S; i++) {
    int known = ids[i] >= 0 && ids[i] < V;
    for (int d = 0; known && d < D; d++) rows[i * D + d] = w[ids[i] * D + d], dw[ids[i] * D + d] += dy[i * D + d];
    double sum = 0;
    for (int v = 0; v < V; v++) sum += exp(logits[i * V + v]);
    for (int v = 0; known && v < V; v++) dlogits[i * V + v] = exp(logits[i * V + v]) / sum - (v == ids[i]);
    if (known) loss[i] = log(sum) - logits[i * V + ids[i]];
  }
  void *gids = up(ids, sizeof ids), *gw = up(w, V * D * 4), *gdy = up(dy, B * S * D * 4), *gdw = up(before, V * D * 4);
  void *glogits = up(logits, B * S * V * 4), *out = up(NULL, B * S * D * 4), *gloss = up(NULL, B * S * 4), *gdlogits = up(NULL, B * S * V * 4);
  CHECK(execute_embedding_lookup_gpu(0, gids, gw, out, B, S, D, V) == 1);
  CHECK(execute_embedding_backward_gpu(0, gdy, gids, gdw, B, S, D, V) == 1);
  CHECK(execute_log_softmax_stable_gpu(0, glogits, glogits, B, S, V) == 1);
  CHECK(execute_cross_entropy_loss_grad_gpu(0, glogits, gids, gdlogits, gloss, B, S, V) == 1);
  same("embedding_lookup", out, rows, B * S * D), same("embedding_backward", gdw, dw, V * D);
  same("loss", gloss, loss, B * S), same("gradient of the loss", gdlogits, dlogits, B * S * V);
  free_gpu_memory(0, gids), free_gpu_memory(0, gw), free_gpu_memory(0, gdy), free_gpu_memory(0, glogits);
  free(w), free(dy), free(before), free(logits);
}

static void adam(void) {
  enum { N = 100, STEPS = 5 };
  const double lr = 0.01, b1 = 0.9, b2 = 0.999, eps = 1e-8, wd = 0.1;
  float *p = floats(N), *g = floats(N);
  double *m = doubles(N), *v = doubles(N), *q = doubles(N);
  float *zeros = calloc(N, 4);
  void *gp = up(p, N * 4), *gg = up(g, N * 4), *gm = up(zeros, N * 4), *gv = up(zeros, N * 4);
  for (int i = 0; i < N; i++) q[i] = p[i];
  for (int t = 1; t <= STEPS; t++) {
    CHECK(execute_adam_update_on_gpu(0, gp, gg, gm, gv, N, t, (float)lr, (float)b1, (float)b2, (float)eps, (float)wd) == 1);
    for (int i = 0; i < N; i++) {
      double d = g[i] + wd * q[i];
      m[i] = b1 * m[i] + (1 - b1) * d, v[i] = b2 * v[i] + (1 - b2) * d * d;
      q[i] -= lr * (m[i] / (1 - pow(b1, t))) / (sqrt(v[i] / (1 - pow(b2, t))) + eps);
    }
  }
  CHECK(execute_adam_update_on_gpu(0, gp, gg, gm, gm, N, 1, 1, 0, 0, 1, 0) == 0);
  CHECK(execute_adam_update_on_gpu(0, gp, gg, gm, gv, N, 0, 1, 0, 0, 1, 0) == 0);
  same("adam parameter", gp, q, N), same("adam m", gm, m, N), same("adam v", gv, v, N);
  free_gpu_memory(0, gg);
  free(p), free(g), free(zeros);
}

int main(int count, char **arguments) {
  CHECK(allocate_gpu_memory(0, 16) == NULL && strstr(netcl_last_error(), "initialize_gpu"));
  CHECK(simulated_get_compute_unit_count(0) == 16);
  if (count > 1) CHECK(netcl_driver_device(0, arguments[1]) == NETCL_STATUS_OK);
  CHECK(initialize_gpu(0) == 1 && initialize_gpu(0) == 1);
  CHECK(simulated_get_compute_unit_count(0) > 0);
  products(), elements(), rows(), axes(), lookups(), adam();
  float part[3] = {1, 2, 3}, back[4] = {0};
  void *buffer = up(NULL, 16);
  CHECK(write_host_to_gpu_blocking(0, buffer, 4, 12, part) == 1 && read_gpu_to_host_blocking(0, buffer, 8, 8, back) == 1);
  CHECK(back[0] == 2 && back[1] == 3);
  CHECK(read_gpu_to_host_blocking(0, buffer, 8, 12, back) == 0);
  free_gpu_memory(0, buffer);
  CHECK(read_gpu_to_host_blocking(0, buffer, 0, 4, back) == 0 && strstr(netcl_last_error(), "was freed"));
  buffer = up(NULL, 16);
  shutdown_driver();
  CHECK(write_host_to_gpu_blocking(0, buffer, 0, 4, part) == 0);
  CHECK(execute_add_on_gpu(0, buffer, buffer, buffer, 1) == 0);
  return finish("driver");
}
