// libnetcl: the driver. Buffers are handles, and each operation is one function. The simulated GPU has addresses.
//
// docs/c.md is the guide. Handles are checked: a freed, foreign or random handle is an error, never a crash. If a call
// fails, it returns an error code, and netcl_last_error() returns the reason. Every function may be called from any thread.
// Generated from the sources by `make capi`. A test fails if this file is out of date.

#ifndef NETCL_DRIVER_H
#define NETCL_DRIVER_H

#include "netcl.h"

// Computes `c` (m, n) = `a` (m, k) · `b` (k, n). `element` is the element size in bytes: 4 for float, 8 for double.
#define NETCL_SIMULATED_MATRIX_MULTIPLY 1

// Copies `bytes` bytes from `a` to `c`.
#define NETCL_SIMULATED_COPY 2

// Sets `bytes` bytes at `c` to the byte `element`.
#define NETCL_SIMULATED_FILL 3

// A command for the simulated GPU. Only the fields that belong to the operation are read.
typedef struct {
  // `NETCL_SIMULATED_MATRIX_MULTIPLY`, `NETCL_SIMULATED_COPY` or `NETCL_SIMULATED_FILL`.
  int operation;
  // Size of an element in bytes, or the byte of a fill.
  int element;
  // Address of the first input, from `simulated_kernel_allocate`.
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
  // Size of a copy or fill in bytes.
  unsigned long long bytes;
} netcl_simulated_command;

// Callback for a completed read-back. `status` is its result.
typedef void (*netcl_simulated_read_callback)(netcl_status status, void *user);

// Callback that receives a line of the trace.
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
// number does not exist, the device of index 0 is opened. Without an OpenCL device, the simulated GPU is opened. Builds the kernels of
// every function of the driver, or loads them from the cache on disk, and compares a small result of each function with known numbers.
// A kernel whose source depends on a size is built again at the first use of another size. `netcl_driver_describe` reports the result.
// Call this before all other functions of a GPU. Later calls have no effect.
//
// Returns 1, or 0 if no device can be opened, or if a kernel does not build or computes a wrong result.
int initialize_gpu(int gpu_index);

// Sets the device that `initialize_gpu` opens for an index: `auto`, `sim`, `sim:<profile>`, `<platform>:<number>` or a number. Must be
// called before `initialize_gpu`.
//
// Expects:
// `device` is a string that ends with a zero byte.
netcl_status netcl_driver_device(int gpu_index,
                                 const char *device);

// Writes a report of the GPU to `text`, on one line: its name, the functions that `initialize_gpu` checked, the kernels that it compiled
// or loaded from the cache, the time, and whether the GPU has FP64 and atomics. `room` is the size of `text` in bytes, including the
// terminating zero. `length` receives the length without the zero. If `text` is NULL, only the length is returned.
//
// Expects:
// `text` points to space for `room` bytes or is NULL; `length` points to space for a number or is NULL.
netcl_status netcl_driver_describe(int gpu_index,
                                   char *text,
                                   size_t room,
                                   size_t *length);

// Returns 1 if the GPU computes with doubles, otherwise 0. Without a GPU, returns 0 and sets `netcl_last_error()`.
int netcl_driver_has_fp64(int gpu_index);

// Returns 1 if the GPU has 32-bit atomic operations, otherwise 0. Without a GPU, returns 0 and sets `netcl_last_error()`. netcl's
// functions do not need them: their sums are deterministic.
int netcl_driver_has_atomics(int gpu_index);

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

// Enqueues a command, rings the doorbell, and waits until the command is complete. Returns 1, or 0 on failure.
//
// Expects:
// `command` points to a command.
int submit_command(int gpu_index,
                   const netcl_simulated_command *command);

// Multiplies two matrices on the simulated GPU. `shape_a` and `shape_b` contain rows and columns. `size_a` and `size_b` are sizes in
// bytes; they determine whether the elements are float or double. Returns the address of the result in the program's memory, or 0 on
// failure. Read the result with `simulated_kernel_read` or through the address, and free it with `simulated_kernel_free`.
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

// Allocates `size` bytes of the simulated GPU's memory. Returns the address of these bytes in the program's memory, or 0 on failure. The
// address is aligned like one of `malloc`. The program may read and write the bytes through it while no command uses them, and commands
// see the same bytes. It is valid until `simulated_kernel_free` or `netcl_simulated_shutdown`. The content is not initialized.
unsigned long long simulated_kernel_allocate(int gpu_index,
                                             size_t size);

// Frees memory from `simulated_kernel_allocate` or `simulated_matrix_multiply`. `size` is ignored. An invalid address only sets
// `netcl_last_error()`.
void simulated_kernel_free(int gpu_index,
                           unsigned long long address,
                           size_t size);

// Copies `size` bytes from `source` to an address of `simulated_kernel_allocate`. The copy engine reads the source from pinned memory, and the copy
// is complete on return. A failure only sets `netcl_last_error()`.
//
// Expects:
// `source` points to `size` bytes.
void simulated_kernel_write(int gpu_index,
                            unsigned long long address,
                            size_t size,
                            const void *source);

// Copies `size` bytes at an address of `simulated_kernel_allocate` to `destination`, and waits for the copy. Returns 1, or 0 on failure.
//
// Expects:
// `destination` points to space for `size` bytes.
int simulated_kernel_read(int gpu_index,
                          unsigned long long address,
                          size_t size,
                          void *destination);

// Starts copying `size` bytes from the simulated GPU to `destination`, and returns. When the copy is complete, `callback` is called with
// its status and `user` on another thread. The callback may call this library. Returns 1 if the copy was started. Otherwise returns 0, and
// `callback` is not called.
//
// Expects:
// `destination` points to space for `size` bytes until `callback` is called.
int netcl_simulated_read_async(int gpu_index,
                               unsigned long long address,
                               size_t size,
                               void *destination,
                               netcl_simulated_read_callback callback,
                               void *user);

// Waits until all read-backs of `netcl_simulated_read_async` are complete and their callbacks have returned. Must not be called from a
// callback.
void netcl_simulated_finish(int gpu_index);

// Removes the simulated GPU and all its memory, whose addresses become invalid. The next call creates a new one.
void netcl_simulated_shutdown(void);

// Sets the detail of the trace: level 0 none, 1 one line per command, 2 each step from the ring to the interrupt, 3 also registers and
// compute units. Each line is passed to `sink` with `user`, or written to standard error if `sink` is NULL. `sink` must not call this
// library.
//
// Expects:
// `sink` can be called with a string and `user` from any thread.
netcl_status netcl_simulated_set_log(int level,
                                     netcl_simulated_trace_callback sink,
                                     void *user);

// Returns the number of compute units of the GPU that `initialize_gpu` opened for this index, or 16 if none is open.
unsigned int simulated_get_compute_unit_count(int gpu_index);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* NETCL_DRIVER_H */
