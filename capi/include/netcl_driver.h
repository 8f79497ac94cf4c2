// libnetcl: the driver. Buffers are handles, and each operation is one function. The simulated GPU has addresses.
//
// docs/c.md is the guide. Handles are checked: a freed, foreign or random one is an error, never a crash. A call that
// fails returns an error code, and netcl_last_error() says why. Every function may be called from any thread.
// Made from the sources by `make capi`; a test fails where it is out of date.

#ifndef NETCL_DRIVER_H
#define NETCL_DRIVER_H

#include "netcl.h"

// `c` (m, n) = `a` (m, k) · `b` (k, n) of elements of `element` bytes: 4 for float, 8 for double.
#define NETCL_SIMULATED_MATRIX_MULTIPLY 1

// `bytes` bytes from `a` to `c`.
#define NETCL_SIMULATED_COPY 2

// `bytes` bytes at `c` become the byte `element`.
#define NETCL_SIMULATED_FILL 3

// What the simulated GPU is to do. Fields that the operation does not name are not looked at.
typedef struct {
  // `NETCL_SIMULATED_MATRIX_MULTIPLY`, `NETCL_SIMULATED_COPY` or `NETCL_SIMULATED_FILL`.
  int operation;
  // Bytes of an element, or the byte of a fill.
  int element;
  // Address of the first input.
  unsigned long long a;
  // Address of the second input.
  unsigned long long b;
  // Address of the result.
  unsigned long long c;
  // Rows of the result.
  unsigned long long m;
  // Columns of the result.
  unsigned long long n;
  // Columns of `a` and rows of `b`.
  unsigned long long k;
  // Bytes of a copy or fill.
  unsigned long long bytes;
} netcl_simulated_command;

// Called when a read-back is done: `status` says how it went.
typedef void (*netcl_simulated_read_callback)(netcl_status status, void *user);

// Takes a line of the trace.
typedef void (*netcl_simulated_trace_callback)(const char *line, void *user);

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Computes the gradient of GELU: dx = dy · GELU'(x).
int execute_gelu_backward_on_gpu(int gpu_index,
                                 void *buffer_input,
                                 void *buffer_grad_output,
                                 void *buffer_grad_input,
                                 int num_elements);

// Computes the gradient of a layer norm without scale and shift.
int execute_layernorm_backward_on_gpu(int gpu_index,
                                      void *buffer_dy,
                                      void *buffer_x,
                                      void *buffer_dx,
                                      int num_rows,
                                      int row_size,
                                      float eps);

// Computes the gradient of a softmax: dx = (dy - sum(dy · y)) · y for each row, where y is the result of the softmax.
int execute_softmax_backward_on_gpu(int gpu_index,
                                    void *buffer_dy,
                                    void *buffer_y,
                                    void *buffer_dx,
                                    int num_rows,
                                    int row_size);

// Computes the gradient of a transpose, which is the transpose of `buffer_dC`. `rows_A` and `cols_A` are the size of its input.
int execute_transpose_backward_on_gpu(int gpu_index,
                                      void *buffer_dC,
                                      void *buffer_dA,
                                      int rows_A,
                                      int cols_A);

// Computes dA = dC · B and dB = dC · A elementwise. Either may be NULL.
int execute_mul_backward_on_gpu(int gpu_index,
                                void *buffer_dC,
                                void *buffer_A,
                                void *buffer_B,
                                void *buffer_dA,
                                void *buffer_dB,
                                int num_elements);

// Computes the gradients of C = A · B with A (B, M, K) and B (K, N): dA = dC · Bᵀ and dB = Aᵀ · dC, summed over the batch. Either may be
// NULL.
int execute_matmul_backward_on_gpu(int gpu_index,
                                   void *buffer_a,
                                   void *buffer_b,
                                   void *buffer_dc,
                                   void *buffer_da,
                                   void *buffer_db,
                                   int dim_b,
                                   int dim_m,
                                   int dim_n,
                                   int dim_k);

// Computes the gradients of C[b] = A[b] · B[b]: dA[b] = dC[b] · B[b]ᵀ and dB[b] = A[b]ᵀ · dC[b]. Either may be NULL.
int execute_matmul_batched_backward_on_gpu(int gpu_index,
                                           void *buffer_a,
                                           void *buffer_b,
                                           void *buffer_dc,
                                           void *buffer_da,
                                           void *buffer_db,
                                           int dim_b,
                                           int dim_m,
                                           int dim_n,
                                           int dim_k);

// Adds d_o[b, s, :] to d_w[idx[b, s], :]. Indices outside of d_w, such as padding, are ignored. The order of additions is deterministic.
int execute_embedding_backward_gpu(int gpu_index,
                                   void *d_o,
                                   void *idx,
                                   void *d_w,
                                   int b,
                                   int s,
                                   int d,
                                   int v);

// Computes C = A · B with A (B, M, K), B (K, N), C (B, M, N). Use B = 1 for matrices.
int execute_matmul_on_gpu(int gpu_index,
                          void *buffer_a,
                          void *buffer_b,
                          void *buffer_c,
                          int dim_b,
                          int dim_m,
                          int dim_n,
                          int dim_k);

// Computes C[b] = A[b] · B[b] with A (B, M, K), B (B, K, N), C (B, M, N).
int execute_matmul_batched_on_gpu(int gpu_index,
                                  void *buffer_a,
                                  void *buffer_b,
                                  void *buffer_c,
                                  int dim_b,
                                  int dim_m,
                                  int dim_n,
                                  int dim_k);

// Computes the softmax of each row.
int execute_softmax_on_gpu(int gpu_index,
                           void *buffer_input,
                           void *buffer_output,
                           int num_rows,
                           int row_size);

// Computes the log-softmax over the last axis of (B, S, V). Does not wait; later operations on this GPU see the result.
int execute_log_softmax_stable_gpu(int gpu_index,
                                   void *input_logits,
                                   void *output_log_probs,
                                   int dim_b,
                                   int dim_s,
                                   int dim_v);

// Computes GELU elementwise: 0.5 · x · (1 + erf(x / √2)).
int execute_gelu_on_gpu(int gpu_index, void *buffer_input, void *buffer_output, int num_elements);

// Computes C = A + B elementwise.
int execute_add_on_gpu(int gpu_index, void *buffer_a, void *buffer_b, void *buffer_c, int num_elements);

// Computes C = A · B elementwise.
int execute_mul_on_gpu(int gpu_index, void *buffer_a, void *buffer_b, void *buffer_c, int num_elements);

// Adds a bias: C[b, m, n] = A[b, m, n] + B[n].
int execute_broadcast_add_gpu(int gpu_index, void *a, void *b, void *c, int dim_b, int dim_m, int dim_n);

// Adds positional encodings: output[b, s, e] = input[b, s, e] + pe[s, e].
int execute_add_broadcast_pe_gpu(int gpu_index,
                                 void *input,
                                 void *pe_slice,
                                 void *output,
                                 int dim_b,
                                 int dim_s,
                                 int dim_e);

// Computes a layer norm without scale and shift: each row minus its mean, divided by the square root of its variance plus `eps`.
int execute_layernorm_on_gpu(int gpu_index,
                             void *buffer_input,
                             void *buffer_output,
                             int num_rows,
                             int row_size,
                             float eps);

// Transposes a matrix of `rows` × `cols`.
int execute_transpose_on_gpu(int gpu_index, void *buffer_input, void *buffer_output, int rows, int cols);

// Transposes the last two axes: (B_flat, d1, d2) to (B_flat, d2, d1).
int execute_transpose_batched_gpu(int gpu_index, void *in, void *out, int B_flat, int d1, int d2);

// Swaps the two middle axes: (B, d1, d2, d3) to (B, d2, d1, d3).
int execute_transpose_12_batched_gpu(int gpu_index,
                                     void *buffer_in,
                                     void *buffer_out,
                                     int dim_b,
                                     int d1,
                                     int d2,
                                     int d3);

// Looks up rows: o[b, s, :] = w[idx[b, s], :] with idx (b, s) int32, w (v, d), o (b, s, d). Indices outside of w, such as padding, give
// zeros.
int execute_embedding_lookup_gpu(int gpu_index,
                                 void *idx,
                                 void *w,
                                 void *o,
                                 int b,
                                 int s,
                                 int d,
                                 int v);

// Sums over b and m: out[n] = sum of in[b, m, n], the gradient of a bias.
int execute_reduce_sum_gpu(int gpu_index, void *in, void *out, int dim_b, int dim_m, int dim_n);

// Computes the cross entropy and its gradient for each of the B · S rows of log_probs (B, S, V). loss_per_sample (B, S) =
// -log_probs[target]. grad_input (B, S, V) = exp(log_probs), minus 1 at the target. target_indices (B, S) is int32. A target outside of
// the classes, such as padding, has loss and gradient 0. Does not wait; later operations on this GPU see the results.
int execute_cross_entropy_loss_grad_gpu(int gpu_index,
                                        void *log_probs,
                                        void *target_indices,
                                        void *grad_input,
                                        void *loss_per_sample,
                                        int dim_b,
                                        int dim_s,
                                        int dim_v);

// Opens the device with this index: the one set by `netcl_driver_device`, or the OpenCL device with that number, starting at 0. If the
// number does not exist, the first OpenCL device is opened. If there is no OpenCL device, the simulated GPU is opened. Kernels are built
// at their first use and cached on disk. Call this before all other functions of a GPU. Later calls have no effect.
//
// Returns 1, or 0 if no device can be opened.
int initialize_gpu(int gpu_index);

// Sets the device that `initialize_gpu` opens for an index: `auto`, `sim`, `sim:<profile>`, `<platform>:<number>` or a number. Must be
// called before `initialize_gpu`.
//
// Expects:
// `device` is a string that ends with a zero byte.
netcl_status netcl_driver_device(int gpu_index,
                                 const char *device);

// Frees all buffers and closes all devices. Handles of buffers become invalid. `initialize_gpu` starts again.
void shutdown_driver(void);

// Allocates an uninitialized buffer of `size` bytes on a GPU. Returns its handle, or NULL on failure.
void *allocate_gpu_memory(int gpu_index, size_t size);

// Frees a buffer. NULL is ignored. Freeing a buffer twice only sets `netcl_last_error()`.
void free_gpu_memory(int gpu_index, void *buffer_handle);

// Copies `size` bytes from the host to a buffer, starting at byte `offset`. Returns when the source may be changed.
//
// Expects:
// `host_source_ptr` points to `size` bytes.
int write_host_to_gpu_blocking(int gpu_index,
                               void *gpu_buffer_handle,
                               size_t offset,
                               size_t size,
                               const void *host_source_ptr);

// Copies `size` bytes from a buffer, starting at byte `offset`, to the host. Waits for all earlier operations.
//
// Expects:
// `host_destination_ptr` points to room for `size` bytes.
int read_gpu_to_host_blocking(int gpu_index,
                              void *gpu_buffer_handle,
                              size_t offset,
                              size_t size,
                              void *host_destination_ptr);

// Copies the first `size` bytes of a buffer to the start of another buffer.
int execute_clone_on_gpu(int gpu_index, void *src_buffer, void *dst_buffer, size_t size);

// Computes the gradient of GELU: dx = dy · GELU'(x).
int execute_gelu_backward_on_gpu(int gpu_index,
                                 void *buffer_input,
                                 void *buffer_grad_output,
                                 void *buffer_grad_input,
                                 int num_elements);

// Computes the gradient of a layer norm without scale and shift.
int execute_layernorm_backward_on_gpu(int gpu_index,
                                      void *buffer_dy,
                                      void *buffer_x,
                                      void *buffer_dx,
                                      int num_rows,
                                      int row_size,
                                      float eps);

// Computes the gradient of a softmax: dx = (dy - sum(dy · y)) · y for each row, where y is the result of the softmax.
int execute_softmax_backward_on_gpu(int gpu_index,
                                    void *buffer_dy,
                                    void *buffer_y,
                                    void *buffer_dx,
                                    int num_rows,
                                    int row_size);

// Computes the gradient of a transpose, which is the transpose of `buffer_dC`. `rows_A` and `cols_A` are the size of its input.
int execute_transpose_backward_on_gpu(int gpu_index,
                                      void *buffer_dC,
                                      void *buffer_dA,
                                      int rows_A,
                                      int cols_A);

// Computes dA = dC · B and dB = dC · A elementwise. Either may be NULL.
int execute_mul_backward_on_gpu(int gpu_index,
                                void *buffer_dC,
                                void *buffer_A,
                                void *buffer_B,
                                void *buffer_dA,
                                void *buffer_dB,
                                int num_elements);

// Computes the gradients of C = A · B with A (B, M, K) and B (K, N): dA = dC · Bᵀ and dB = Aᵀ · dC, summed over the batch. Either may be
// NULL.
int execute_matmul_backward_on_gpu(int gpu_index,
                                   void *buffer_a,
                                   void *buffer_b,
                                   void *buffer_dc,
                                   void *buffer_da,
                                   void *buffer_db,
                                   int dim_b,
                                   int dim_m,
                                   int dim_n,
                                   int dim_k);

// Computes the gradients of C[b] = A[b] · B[b]: dA[b] = dC[b] · B[b]ᵀ and dB[b] = A[b]ᵀ · dC[b]. Either may be NULL.
int execute_matmul_batched_backward_on_gpu(int gpu_index,
                                           void *buffer_a,
                                           void *buffer_b,
                                           void *buffer_dc,
                                           void *buffer_da,
                                           void *buffer_db,
                                           int dim_b,
                                           int dim_m,
                                           int dim_n,
                                           int dim_k);

// Adds d_o[b, s, :] to d_w[idx[b, s], :]. Indices outside of d_w, such as padding, are ignored. The order of additions is deterministic.
int execute_embedding_backward_gpu(int gpu_index,
                                   void *d_o,
                                   void *idx,
                                   void *d_w,
                                   int b,
                                   int s,
                                   int d,
                                   int v);

// Computes C = A · B with A (B, M, K), B (K, N), C (B, M, N). Use B = 1 for matrices.
int execute_matmul_on_gpu(int gpu_index,
                          void *buffer_a,
                          void *buffer_b,
                          void *buffer_c,
                          int dim_b,
                          int dim_m,
                          int dim_n,
                          int dim_k);

// Computes C[b] = A[b] · B[b] with A (B, M, K), B (B, K, N), C (B, M, N).
int execute_matmul_batched_on_gpu(int gpu_index,
                                  void *buffer_a,
                                  void *buffer_b,
                                  void *buffer_c,
                                  int dim_b,
                                  int dim_m,
                                  int dim_n,
                                  int dim_k);

// Computes the softmax of each row.
int execute_softmax_on_gpu(int gpu_index,
                           void *buffer_input,
                           void *buffer_output,
                           int num_rows,
                           int row_size);

// Computes the log-softmax over the last axis of (B, S, V). Does not wait; later operations on this GPU see the result.
int execute_log_softmax_stable_gpu(int gpu_index,
                                   void *input_logits,
                                   void *output_log_probs,
                                   int dim_b,
                                   int dim_s,
                                   int dim_v);

// Computes GELU elementwise: 0.5 · x · (1 + erf(x / √2)).
int execute_gelu_on_gpu(int gpu_index, void *buffer_input, void *buffer_output, int num_elements);

// Computes C = A + B elementwise.
int execute_add_on_gpu(int gpu_index, void *buffer_a, void *buffer_b, void *buffer_c, int num_elements);

// Computes C = A · B elementwise.
int execute_mul_on_gpu(int gpu_index, void *buffer_a, void *buffer_b, void *buffer_c, int num_elements);

// Adds a bias: C[b, m, n] = A[b, m, n] + B[n].
int execute_broadcast_add_gpu(int gpu_index, void *a, void *b, void *c, int dim_b, int dim_m, int dim_n);

// Adds positional encodings: output[b, s, e] = input[b, s, e] + pe[s, e].
int execute_add_broadcast_pe_gpu(int gpu_index,
                                 void *input,
                                 void *pe_slice,
                                 void *output,
                                 int dim_b,
                                 int dim_s,
                                 int dim_e);

// Computes a layer norm without scale and shift: each row minus its mean, divided by the square root of its variance plus `eps`.
int execute_layernorm_on_gpu(int gpu_index,
                             void *buffer_input,
                             void *buffer_output,
                             int num_rows,
                             int row_size,
                             float eps);

// Transposes a matrix of `rows` × `cols`.
int execute_transpose_on_gpu(int gpu_index, void *buffer_input, void *buffer_output, int rows, int cols);

// Transposes the last two axes: (B_flat, d1, d2) to (B_flat, d2, d1).
int execute_transpose_batched_gpu(int gpu_index, void *in, void *out, int B_flat, int d1, int d2);

// Swaps the two middle axes: (B, d1, d2, d3) to (B, d2, d1, d3).
int execute_transpose_12_batched_gpu(int gpu_index,
                                     void *buffer_in,
                                     void *buffer_out,
                                     int dim_b,
                                     int d1,
                                     int d2,
                                     int d3);

// Looks up rows: o[b, s, :] = w[idx[b, s], :] with idx (b, s) int32, w (v, d), o (b, s, d). Indices outside of w, such as padding, give
// zeros.
int execute_embedding_lookup_gpu(int gpu_index,
                                 void *idx,
                                 void *w,
                                 void *o,
                                 int b,
                                 int s,
                                 int d,
                                 int v);

// Sums over b and m: out[n] = sum of in[b, m, n], the gradient of a bias.
int execute_reduce_sum_gpu(int gpu_index, void *in, void *out, int dim_b, int dim_m, int dim_n);

// Computes the cross entropy and its gradient for each of the B · S rows of log_probs (B, S, V). loss_per_sample (B, S) =
// -log_probs[target]. grad_input (B, S, V) = exp(log_probs), minus 1 at the target. target_indices (B, S) is int32. A target outside of
// the classes, such as padding, has loss and gradient 0. Does not wait; later operations on this GPU see the results.
int execute_cross_entropy_loss_grad_gpu(int gpu_index,
                                        void *log_probs,
                                        void *target_indices,
                                        void *grad_input,
                                        void *loss_per_sample,
                                        int dim_b,
                                        int dim_s,
                                        int dim_v);

// Opens the device with this index: the one set by `netcl_driver_device`, or the OpenCL device with that number, starting at 0. If the
// number does not exist, the first OpenCL device is opened. If there is no OpenCL device, the simulated GPU is opened. Kernels are built
// at their first use and cached on disk. Call this before all other functions of a GPU. Later calls have no effect.
//
// Returns 1, or 0 if no device can be opened.
int initialize_gpu(int gpu_index);

// Sets the device that `initialize_gpu` opens for an index: `auto`, `sim`, `sim:<profile>`, `<platform>:<number>` or a number. Must be
// called before `initialize_gpu`.
//
// Expects:
// `device` is a string that ends with a zero byte.
netcl_status netcl_driver_device(int gpu_index,
                                 const char *device);

// Frees all buffers and closes all devices. Handles of buffers become invalid. `initialize_gpu` starts again.
void shutdown_driver(void);

// Allocates an uninitialized buffer of `size` bytes on a GPU. Returns its handle, or NULL on failure.
void *allocate_gpu_memory(int gpu_index, size_t size);

// Frees a buffer. NULL is ignored. Freeing a buffer twice only sets `netcl_last_error()`.
void free_gpu_memory(int gpu_index, void *buffer_handle);

// Copies `size` bytes from the host to a buffer, starting at byte `offset`. Returns when the source may be changed.
//
// Expects:
// `host_source_ptr` points to `size` bytes.
int write_host_to_gpu_blocking(int gpu_index,
                               void *gpu_buffer_handle,
                               size_t offset,
                               size_t size,
                               const void *host_source_ptr);

// Copies `size` bytes from a buffer, starting at byte `offset`, to the host. Waits for all earlier operations.
//
// Expects:
// `host_destination_ptr` points to room for `size` bytes.
int read_gpu_to_host_blocking(int gpu_index,
                              void *gpu_buffer_handle,
                              size_t offset,
                              size_t size,
                              void *host_destination_ptr);

// Copies the first `size` bytes of a buffer to the start of another buffer.
int execute_clone_on_gpu(int gpu_index, void *src_buffer, void *dst_buffer, size_t size);

// Runs step `t` of Adam (Kingma and Ba, 2015) on f32 buffers of `num_elements`. Steps start at 1. With g = gradient + weight_decay ·
// parameter: m = beta1·m + (1-beta1)·g, v = beta2·v + (1-beta2)·g², and the parameter decreases by lr · m̂ / (√v̂ + eps), where m̂ = m /
// (1-beta1ᵗ) and v̂ = v / (1-beta2ᵗ). Parameter, gradient, m and v are four different buffers.
int execute_adam_update_on_gpu(int gpu_index,
                               void *param_buffer,
                               void *grad_buffer,
                               void *m_buffer,
                               void *v_buffer,
                               int num_elements,
                               int t,
                               float lr,
                               float beta1,
                               float beta2,
                               float eps,
                               float weight_decay);

// Runs step `t` of Adam (Kingma and Ba, 2015) on f32 buffers of `num_elements`. Steps start at 1. With g = gradient + weight_decay ·
// parameter: m = beta1·m + (1-beta1)·g, v = beta2·v + (1-beta2)·g², and the parameter decreases by lr · m̂ / (√v̂ + eps), where m̂ = m /
// (1-beta1ᵗ) and v̂ = v / (1-beta2ᵗ). Parameter, gradient, m and v are four different buffers.
int execute_adam_update_on_gpu(int gpu_index,
                               void *param_buffer,
                               void *grad_buffer,
                               void *m_buffer,
                               void *v_buffer,
                               int num_elements,
                               int t,
                               float lr,
                               float beta1,
                               float beta2,
                               float eps,
                               float weight_decay);

// Writes a command into the simulated GPU's ring, rings, and waits until its fence is there. Answers 1, or 0.
//
// Expects:
// `command` points to a command.
int submit_command(int gpu_index, const netcl_simulated_command *command);

// The product of two matrices on the simulated GPU. `shape_a` and `shape_b` have rows and columns; `size_a` and `size_b` are bytes, from which follows
// whether the elements are float or double. Answers the address of the result on the device, which `simulated_kernel_read` reads and
// `simulated_kernel_free` gives back, or 0.
//
// Expects:
// `shape_a` and `shape_b` point to two numbers each.
unsigned long long simulated_matrix_multiply(int gpu_index,
                                             unsigned long long address_a,
                                             unsigned long long address_b,
                                             size_t size_a,
                                             size_t size_b,
                                             const int *shape_a,
                                             const int *shape_b);

// `size` bytes of the simulated GPU's memory. Answers their address on the device, or 0.
unsigned long long simulated_kernel_allocate(int gpu_index, size_t size);

// Gives memory of `simulated_kernel_allocate` back. `size` is not needed. An address that is none is only noted in `netcl_last_error()`.
void simulated_kernel_free(int gpu_index,
                           unsigned long long address,
                           size_t size);

// Copies `size` bytes at `source` to an address of the simulated GPU: pinned, read by its copy engine, and done on return. What is wrong is only
// noted in `netcl_last_error()`.
//
// Expects:
// `source` points to `size` bytes.
void simulated_kernel_write(int gpu_index,
                            unsigned long long address,
                            size_t size,
                            const void *source);

// Copies `size` bytes of the simulated GPU to `destination`, and waits for that. Answers 1, or 0.
//
// Expects:
// `destination` has room for `size` bytes.
int simulated_kernel_read(int gpu_index, unsigned long long address, size_t size, void *destination);

// Begins to copy `size` bytes of the simulated GPU to `destination`, and returns. Once they are there, `callback` is called with how that went and
// with `user`, from a thread of its own. It may call this library. Answers 1 where it was begun, else 0, and then `callback` is not called.
//
// Expects:
// `destination` has room for `size` bytes until `callback` is called.
int netcl_simulated_read_async(int gpu_index,
                               unsigned long long address,
                               size_t size,
                               void *destination,
                               netcl_simulated_read_callback callback,
                               void *user);

// Waits until every read-back of `netcl_simulated_read_async` is done and its callback has returned. Not from a callback.
void netcl_simulated_finish(int gpu_index);

// Takes the simulated GPU away, with all its memory; the next call has a new one.
void netcl_simulated_shutdown(void);

// Tells in words what the simulated GPU does: level 0 nothing, 1 a line a command, 2 each step from the ring to the interrupt, 3 also registers
// and compute units. Each line goes to `sink` with `user`, or to standard error where `sink` is NULL. `sink` may not call this library.
//
// Expects:
// `sink` takes a text and `user` from any thread.
netcl_status netcl_simulated_set_log(int level,
                                     netcl_simulated_trace_callback sink,
                                     void *user);

// Compute units of the GPU that `initialize_gpu` opened under this index, or 16 where none is open.
unsigned int simulated_get_compute_unit_count(int gpu_index);

// Writes a command into the simulated GPU's ring, rings, and waits until its fence is there. Answers 1, or 0.
//
// Expects:
// `command` points to a command.
int submit_command(int gpu_index, const netcl_simulated_command *command);

// The product of two matrices on the simulated GPU. `shape_a` and `shape_b` have rows and columns; `size_a` and `size_b` are bytes, from which follows
// whether the elements are float or double. Answers the address of the result on the device, which `simulated_kernel_read` reads and
// `simulated_kernel_free` gives back, or 0.
//
// Expects:
// `shape_a` and `shape_b` point to two numbers each.
unsigned long long simulated_matrix_multiply(int gpu_index,
                                             unsigned long long address_a,
                                             unsigned long long address_b,
                                             size_t size_a,
                                             size_t size_b,
                                             const int *shape_a,
                                             const int *shape_b);

// `size` bytes of the simulated GPU's memory. Answers their address on the device, or 0.
unsigned long long simulated_kernel_allocate(int gpu_index, size_t size);

// Gives memory of `simulated_kernel_allocate` back. `size` is not needed. An address that is none is only noted in `netcl_last_error()`.
void simulated_kernel_free(int gpu_index,
                           unsigned long long address,
                           size_t size);

// Copies `size` bytes at `source` to an address of the simulated GPU: pinned, read by its copy engine, and done on return. What is wrong is only
// noted in `netcl_last_error()`.
//
// Expects:
// `source` points to `size` bytes.
void simulated_kernel_write(int gpu_index,
                            unsigned long long address,
                            size_t size,
                            const void *source);

// Copies `size` bytes of the simulated GPU to `destination`, and waits for that. Answers 1, or 0.
//
// Expects:
// `destination` has room for `size` bytes.
int simulated_kernel_read(int gpu_index, unsigned long long address, size_t size, void *destination);

// Begins to copy `size` bytes of the simulated GPU to `destination`, and returns. Once they are there, `callback` is called with how that went and
// with `user`, from a thread of its own. It may call this library. Answers 1 where it was begun, else 0, and then `callback` is not called.
//
// Expects:
// `destination` has room for `size` bytes until `callback` is called.
int netcl_simulated_read_async(int gpu_index,
                               unsigned long long address,
                               size_t size,
                               void *destination,
                               netcl_simulated_read_callback callback,
                               void *user);

// Waits until every read-back of `netcl_simulated_read_async` is done and its callback has returned. Not from a callback.
void netcl_simulated_finish(int gpu_index);

// Takes the simulated GPU away, with all its memory; the next call has a new one.
void netcl_simulated_shutdown(void);

// Tells in words what the simulated GPU does: level 0 nothing, 1 a line a command, 2 each step from the ring to the interrupt, 3 also registers
// and compute units. Each line goes to `sink` with `user`, or to standard error where `sink` is NULL. `sink` may not call this library.
//
// Expects:
// `sink` takes a text and `user` from any thread.
netcl_status netcl_simulated_set_log(int level,
                                     netcl_simulated_trace_callback sink,
                                     void *user);

// Compute units of the GPU that `initialize_gpu` opened under this index, or 16 where none is open.
unsigned int simulated_get_compute_unit_count(int gpu_index);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* NETCL_DRIVER_H */
