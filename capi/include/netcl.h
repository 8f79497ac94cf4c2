// libnetcl: tensors, language models and a simulated GPU, for programs in C and in every language that calls C.
//
// docs/c.md is the guide. Handles are checked: a freed, foreign or random one is an error, never a crash. A call that
// fails returns an error code, and netcl_last_error() says why. Every function may be called from any thread.
// Made from the sources by `make capi`; a test fails where it is out of date.

#ifndef NETCL_H
#define NETCL_H

#include <stddef.h>
#include <stdint.h>

// A buffer that the kernel reads and writes: `address` and `bytes`.
#define AETHERCL_BUFFER 0

// A buffer that the kernel only reads; a store there is a finding.
#define AETHERCL_BUFFER_READ 1

// A scalar or vector: `bytes` bytes at `data`.
#define AETHERCL_VALUE 2

// Local memory of `bytes` bytes.
#define AETHERCL_LOCAL 3

// `c` (m, n) = `a` (m, k) · `b` (k, n) of elements of `element` bytes: 4 for float, 8 for double.
#define SIMULATED_MATRIX_MULTIPLY 1

// `bytes` bytes from `a` to `c`.
#define SIMULATED_COPY 2

// `bytes` bytes at `c` become the byte `element`.
#define SIMULATED_FILL 3

// The machine's only queue.
#define QUEUE 0

// No value, of an attribute that may go without.
#define NETCL_NONE 0

// A number, in `number`.
#define NETCL_NUMBER 1

// An integer, in `integer`.
#define NETCL_INTEGER 2

// Yes or no, in `integer`: 0 is no.
#define NETCL_BOOL 3

// `count` integers at `integers`: a shape, axes, lengths.
#define NETCL_INTEGERS 4

// A name, in `text`.
#define NETCL_TEXT 5

// A storage type, in `integer`: `NETCL_F32`, ….
#define NETCL_DTYPE 6

// 32-bit float.
#define NETCL_F32 0

// 16-bit float (IEEE binary16).
#define NETCL_F16 1

// bfloat16: the upper half of a 32-bit float.
#define NETCL_BF16 2

// Signed 32-bit integer.
#define NETCL_I32 3

// Unsigned 32-bit integer.
#define NETCL_U32 4

// A mask, as comparisons give it: a byte, 0 or 1. Of bytes that come in any but 0 becomes 1.
#define NETCL_MASK 5

// What a call came to. `netcl_last_error()` has the sentence to any but `NETCL_STATUS_OK`.
typedef enum {
  // It did what it was asked for.
  NETCL_STATUS_OK = 0,
  // Shapes do not fit each other or the operation.
  NETCL_STATUS_SHAPE = 1,
  // A tensor has a dtype that the operation does not take.
  NETCL_STATUS_DTYPE = 2,
  // No such device, no OpenCL library, a device that was lost, or objects of two devices.
  NETCL_STATUS_DEVICE = 3,
  // Out of memory, or above a limit of the device.
  NETCL_STATUS_MEMORY = 4,
  // A kernel did not compile; the text has the compiler's log.
  NETCL_STATUS_BUILD = 5,
  // A kernel, a copy or a queue failed. On the simulated GPU also what its checks found.
  NETCL_STATUS_LAUNCH = 6,
  // This device or version cannot do it.
  NETCL_STATUS_UNSUPPORTED = 7,
  // A file, a name or a text does not say what it should.
  NETCL_STATUS_FORMAT = 8,
  // Reading or writing a file failed.
  NETCL_STATUS_IO = 9,
  // A defect of netcl: please report it.
  NETCL_STATUS_INTERNAL = 10,
  // A handle that was freed, belongs to another kind of object, or never was one.
  NETCL_STATUS_HANDLE = 11,
  // An argument that cannot be: a null pointer, a negative size, an index outside of what there is.
  NETCL_STATUS_ARGUMENT = 12,
  // A callback asked to stop.
  NETCL_STATUS_STOPPED = 13,
} netcl_status;

// A simulated GPU.
typedef struct aethercl_machine aethercl_machine;

// A program that was built.
typedef struct aethercl_program aethercl_program;

// An opened device.
typedef struct netcl_device netcl_device;

// A language model on a device.
typedef struct netcl_model netcl_model;

// A tensor on a device.
typedef struct netcl_tensor netcl_tensor;

// Takes a line of the trace.
typedef void (*TraceSink)(const char *line, void *user);

// How a machine is opened. Zeros are the defaults.
typedef struct {
  // Bytes of memory; 0 for the profile's.
  uint64_t memory;
  // What kernels are checked for: names of checks with commas between, `all`, or NULL for nothing.
  const char *checks;
  // What is told in words: 0 nothing, 1 a line a command, 2 each step, 3 also registers and what each compute unit does.
  int trace_level;
  // Takes each line of that; NULL for standard error. It may not call the machine.
  TraceSink trace;
  // Given to `trace`.
  void *trace_user;
  // Other than 0: keeps a timeline, which `aethercl_timeline` writes.
  int timeline;
} aethercl_options;

// A command's place in its queue: done once the queue's fence has reached `value`.
typedef struct {
  // The queue.
  uint32_t queue;
  // What its fence will be.
  uint64_t value;
} aethercl_fence;

// Called when a read-back is done: `status` says how it went.
typedef void (*ReadBack)(netcl_status status, void *user);

// When a command ran, ns of the simulated clock.
typedef struct {
  // The doorbell.
  uint64_t queued_ns;
  // Begin.
  uint64_t start_ns;
  // End.
  uint64_t end_ns;
} aethercl_times;

// An argument of a kernel.
typedef struct {
  // `AETHERCL_BUFFER`, `AETHERCL_BUFFER_READ`, `AETHERCL_VALUE` or `AETHERCL_LOCAL`.
  int kind;
  // Of a buffer: its device address.
  uint64_t address;
  // Its size.
  uint64_t bytes;
  // Of a value: where it is.
  const void *data;
} aethercl_argument;

// What the checks found at one place of a kernel. Its texts last until the findings are cleared or the machine is closed.
typedef struct {
  // `race-in-group`, `read-outside`, `uninitialized`, …
  const char *kind;
  // The kernel.
  const char *kernel;
  // Line of its text, from 1.
  uint32_t line;
  // Column, from 1.
  uint32_t column;
  // How often it happened there.
  uint64_t count;
  // What happened, the line with a caret, and the work-items.
  const char *text;
} aethercl_finding;

// What a launch did, as the hardware would count it, and how long the model says it takes.
typedef struct {
  // Work-groups.
  uint64_t groups;
  // Work-items.
  uint64_t items;
  // Instructions of SIMD groups.
  uint64_t issued;
  // Lanes of these instructions that were masked off.
  uint64_t lanes_idle;
  // Requests, bytes and sectors of 32 bytes of loads from global memory.
  uint64_t global_load_requests;
  // Bytes that they asked for.
  uint64_t global_load_bytes;
  // Sectors that were moved for them.
  uint64_t global_load_sectors;
  // Requests of stores.
  uint64_t global_store_requests;
  // Bytes that they stored.
  uint64_t global_store_bytes;
  // Sectors that were moved for them.
  uint64_t global_store_sectors;
  // Requests to local memory.
  uint64_t local_requests;
  // Passes through its banks; as many as requests without conflict.
  uint64_t local_passes;
  // Local memory of a group, bytes.
  uint64_t local_bytes;
  // Registers of 32 bits that a work-item needs.
  uint32_t registers;
  // Modelled time on the compute units, ns.
  uint64_t ns;
  // The slowest part, such as `device memory`.
  const char *bound;
} aethercl_counters;

// Where the register window lies and what is in it.
typedef struct {
  // The registers, 32 bits each: the one at offset `o` is `registers[o / 4]`.
  uint32_t *registers;
  // Bytes of the window.
  size_t bytes;
  // Bytes from the window's begin to the ring of queue 0.
  size_t rings;
  // Bytes from a queue's ring to the next one's.
  size_t ring_stride;
} aethercl_mmio;

// What a model is.
typedef struct {
  // Tokens of its vocabulary.
  size_t vocab;
  // Tokens that it looks at, as it was loaded.
  size_t context;
  // Tokens that its files say it can look at.
  size_t trained_context;
  // Layers.
  size_t layers;
  // Width of the residual stream.
  size_t width;
  // Parameters.
  uint64_t parameters;
  // How its dense weights are stored, `NETCL_F32`, ….
  int dtype;
} netcl_model_info;

// How a text is made. Zeros of a structure that is all zeros are the model's own settings and the likeliest tokens: see each field.
typedef struct {
  // New tokens at most; 0 for as many as the context takes.
  size_t max_tokens;
  // 0 takes the likeliest token each time; below 0 is the model's own setting.
  float temperature;
  // Keeps the likeliest tokens; 0 is the model's own setting.
  size_t top_k;
  // Keeps the likeliest tokens that together have this probability; 0 is the model's own setting.
  float top_p;
  // The same seed gives the same text.
  uint64_t seed;
  // A text that ends it, or NULL.
  const char *stop;
  // Other than 0: names of control tokens in the prompt are those tokens and not text.
  int special;
} netcl_generation;

// Called with text as it becomes final, in whole characters; other than 0 stops.
typedef int (*Said)(const char *text, void *user);

// What came of it.
typedef struct {
  // Tokens of the prompt.
  size_t prompt_tokens;
  // New tokens.
  size_t tokens;
  // Tokens of the prompt a second.
  double prompt_speed;
  // New tokens a second.
  double speed;
  // Why it ended: 0 a token that ends texts, 1 the stop text, 2 `max_tokens`, 3 the context is full, 4 `said` asked to.
  int finish;
} netcl_generated;

// What the simulated GPU is to do. Fields that the operation does not name are not looked at.
typedef struct {
  // `SIMULATED_MATRIX_MULTIPLY`, `SIMULATED_COPY` or `SIMULATED_FILL`.
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
} simulated_command;

// What an operation takes beside tensors. Fields that the kind does not name are not looked at.
typedef struct {
  // Its name.
  const char *name;
  // `NETCL_NUMBER`, `NETCL_INTEGER`, ….
  int kind;
  // An integer, yes or no, or a storage type.
  int64_t integer;
  // A number.
  double number;
  // A name.
  const char *text;
  // Integers.
  const int64_t *integers;
  // How many integers.
  size_t count;
} netcl_attribute;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// dx = dy · the derivative of GELU at x.
int execute_gelu_backward_on_gpu(int gpu_index,
                                 void *buffer_input,
                                 void *buffer_grad_output,
                                 void *buffer_grad_input,
                                 int num_elements);

// The gradient of a layer norm without scale and shift.
int execute_layernorm_backward_on_gpu(int gpu_index,
                                      void *buffer_dy,
                                      void *buffer_x,
                                      void *buffer_dx,
                                      int num_rows,
                                      int row_size,
                                      float eps);

// dx = (dy - sum(dy · y)) · y of each row, with y the result of the softmax.
int execute_softmax_backward_on_gpu(int gpu_index,
                                    void *buffer_dy,
                                    void *buffer_y,
                                    void *buffer_dx,
                                    int num_rows,
                                    int row_size);

// The gradient of a transpose, with the rows and columns of its input: the transpose of `buffer_dC`.
int execute_transpose_backward_on_gpu(int gpu_index,
                                      void *buffer_dC,
                                      void *buffer_dA,
                                      int rows_A,
                                      int cols_A);

// dA = dC · B and dB = dC · A, element by element. Either may be NULL.
int execute_mul_backward_on_gpu(int gpu_index,
                                void *buffer_dC,
                                void *buffer_A,
                                void *buffer_B,
                                void *buffer_dA,
                                void *buffer_dB,
                                int num_elements);

// Gradients of C = A · B with A (B, M, K), B (K, N): dA = dC · Bᵀ and dB = Aᵀ · dC, summed over the batch. Either may be NULL.
int execute_matmul_backward_on_gpu(int gpu_index,
                                   void *buffer_a,
                                   void *buffer_b,
                                   void *buffer_dc,
                                   void *buffer_da,
                                   void *buffer_db,
                                   int B,
                                   int M,
                                   int N,
                                   int K);

// Gradients of C[b] = A[b] · B[b]: dA[b] = dC[b] · B[b]ᵀ and dB[b] = A[b]ᵀ · dC[b]. Either may be NULL.
int execute_matmul_batched_backward_on_gpu(int gpu_index,
                                           void *buffer_a,
                                           void *buffer_b,
                                           void *buffer_dc,
                                           void *buffer_da,
                                           void *buffer_db,
                                           int B,
                                           int M,
                                           int N,
                                           int K);

// Adds d_o[b, s, :] to d_w[idx[b, s], :]. An index that is no row of d_w, as for padding, adds nothing. The order of additions is always
// the same.
int execute_embedding_backward_gpu(int gpu_index,
                                   void *d_o,
                                   void *idx,
                                   void *d_w,
                                   int b,
                                   int s,
                                   int d,
                                   int v);

// C = A · B with A (B, M, K), B (K, N), C (B, M, N); B of 1 for matrices.
int execute_matmul_on_gpu(int gpu_index,
                          void *buffer_a,
                          void *buffer_b,
                          void *buffer_c,
                          int B,
                          int M,
                          int N,
                          int K);

// C[b] = A[b] · B[b] with A (B, M, K), B (B, K, N), C (B, M, N).
int execute_matmul_batched_on_gpu(int gpu_index,
                                  void *buffer_a,
                                  void *buffer_b,
                                  void *buffer_c,
                                  int B,
                                  int M,
                                  int N,
                                  int K);

// Softmax over each row.
int execute_softmax_on_gpu(int gpu_index,
                           void *buffer_input,
                           void *buffer_output,
                           int num_rows,
                           int row_size);

// Logarithm of the softmax over the last axis of (B, S, V). Does not wait; what follows on this GPU sees the result.
int execute_log_softmax_stable_gpu(int gpu_index,
                                   void *input_logits,
                                   void *output_log_probs,
                                   int B,
                                   int S,
                                   int V);

// 0.5 · x · (1 + erf(x / √2)) of each element.
int execute_gelu_on_gpu(int gpu_index, void *buffer_input, void *buffer_output, int num_elements);

// C = A + B, element by element.
int execute_add_on_gpu(int gpu_index, void *buffer_a, void *buffer_b, void *buffer_c, int num_elements);

// C = A · B, element by element.
int execute_mul_on_gpu(int gpu_index, void *buffer_a, void *buffer_b, void *buffer_c, int num_elements);

// C[b, m, n] = A[b, m, n] + B[n]: a bias.
int execute_broadcast_add_gpu(int gpu_index, void *a, void *b, void *c, int B, int M, int N);

// output[b, s, e] = input[b, s, e] + pe[s, e]: positions.
int execute_add_broadcast_pe_gpu(int gpu_index,
                                 void *input,
                                 void *pe_slice,
                                 void *output,
                                 int B,
                                 int S,
                                 int E);

// Each row less its mean, over the root of its variance and `eps`. Without scale and shift.
int execute_layernorm_on_gpu(int gpu_index,
                             void *buffer_input,
                             void *buffer_output,
                             int num_rows,
                             int row_size,
                             float eps);

// The transpose of a matrix of `rows` × `cols`.
int execute_transpose_on_gpu(int gpu_index, void *buffer_input, void *buffer_output, int rows, int cols);

// The transpose of the last two axes: (B_flat, d1, d2) to (B_flat, d2, d1).
int execute_transpose_batched_gpu(int gpu_index, void *in, void *out, int B_flat, int d1, int d2);

// The two axes in the middle exchanged: (B, D1, D2, D3) to (B, D2, D1, D3).
int execute_transpose_12_batched_gpu(int gpu_index,
                                     void *buffer_in,
                                     void *buffer_out,
                                     int B,
                                     int D1,
                                     int D2,
                                     int D3);

// o[b, s, :] = w[idx[b, s], :] with idx (b, s) of int32, w (v, d), o (b, s, d). An index that is no row of w, as for padding, gives zeros.
int execute_embedding_lookup_gpu(int gpu_index,
                                 void *idx,
                                 void *w,
                                 void *o,
                                 int b,
                                 int s,
                                 int d,
                                 int v);

// out[n] = the sum of in[b, m, n] over b and m: the gradient of a bias.
int execute_reduce_sum_gpu(int gpu_index, void *in, void *out, int B, int M, int N);

// Of each of the B · S rows of log_probs (B, S, V): loss_per_sample (B, S) = -log_probs[target], and grad_input (B, S, V) = exp(log_probs) less
// 1 at the target. target_indices (B, S) is int32; one that is no class, as for padding, has loss and gradient 0. Does not wait; what follows on
// this GPU sees the results.
int execute_cross_entropy_loss_grad_gpu(int gpu_index,
                                        void *log_probs,
                                        void *target_indices,
                                        void *grad_input,
                                        void *loss_per_sample,
                                        int B,
                                        int S,
                                        int V);

// Opens the device of this index: the one that `netcl_driver_device` named, else the OpenCL device of that number, counted from 0. An
// index that does not exist means the first; without any OpenCL device it is the simulated GPU. Kernels are built when they are first
// used, and kept on disk. Comes before everything else on a GPU; once more does nothing.
//
// Answers 1, or 0 where no device opens.
int initialize_gpu(int gpu_index);

// Names the device that `initialize_gpu` opens for an index: `auto`, `sim`, `sim:<profile>`, `<platform>:<number>` or a number. Comes
// before `initialize_gpu`.
//
// Expects:
// `device` is a text that ends with a zero byte.
netcl_status netcl_driver_device(int gpu_index,
                                 const char *device);

// Frees every buffer and closes every device. Handles of buffers are no longer valid; `initialize_gpu` begins anew.
void shutdown_driver(void);

// A buffer of `size` bytes on a GPU, uninitialised. Answers its handle, or NULL.
void *allocate_gpu_memory(int gpu_index, size_t size);

// Frees a buffer. NULL is ignored; one that was freed before is only noted in `netcl_last_error()`.
void free_gpu_memory(int gpu_index, void *buffer_handle);

// Copies `size` bytes of the host to a buffer from byte `offset` on. Returns when the source may be changed.
//
// Expects:
// `host_source_ptr` points to `size` bytes.
int write_host_to_gpu_blocking(int gpu_index,
                               void *gpu_buffer_handle,
                               size_t offset,
                               size_t size,
                               const void *host_source_ptr);

// Copies `size` bytes of a buffer from byte `offset` on to the host. Waits for everything that was begun before.
//
// Expects:
// `host_destination_ptr` points to room for `size` bytes.
int read_gpu_to_host_blocking(int gpu_index,
                              void *gpu_buffer_handle,
                              size_t offset,
                              size_t size,
                              void *host_destination_ptr);

// Copies the first `size` bytes of a buffer to the beginning of another one.
int execute_clone_on_gpu(int gpu_index, void *src_buffer, void *dst_buffer, size_t size);

// Step `t`, counted from 1, of Adam (Kingma and Ba, 2015) on f32 buffers of `num_elements`: with g the gradient plus weight_decay times the
// parameter, m = beta1·m + (1-beta1)·g, v = beta2·v + (1-beta2)·g², and the parameter loses lr · m̂ / (√v̂ + eps), with m̂ = m / (1-beta1ᵗ) and
// v̂ = v / (1-beta2ᵗ). Parameter, gradient, m and v are four buffers.
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

// Why the latest call of this thread that failed did so: which function, what was expected, what was found. Empty where none failed.
// Stays as it is when a call succeeds; the text lasts until the next call of this thread that fails.
const char *netcl_last_error(void);

// The version of the library, such as `0.1.0`.
const char *netcl_version(void);

// Opens a machine: `profile` names the card that it models (`teaching`, `h200`, …, or a `.toml` file), NULL for `teaching`. `options` may be NULL.
//
// Expects:
// `profile` and `options` are NULL or what they say; `machine` has room for a handle.
netcl_status aethercl_open(const char *profile,
                           const aethercl_options *options,
                           aethercl_machine **machine);

// Closes a machine: nothing of it is left, and its register window may no longer be touched.
netcl_status aethercl_close(aethercl_machine *machine);

// Uninitialised device memory; `tag` names it in findings and traces, NULL for `buffer`.
//
// Expects:
// `tag` is NULL or a text; `address` has room for an address.
netcl_status aethercl_allocate(aethercl_machine *machine, uint64_t bytes, const char *tag, uint64_t *address);

// Gives memory back. What still waits in a queue and uses it fails.
netcl_status aethercl_free(aethercl_machine *machine, uint64_t address);

// Bytes of device memory in use, at most in use so far, and in all. Any may be NULL.
//
// Expects:
// Each has room for a number or is NULL.
netcl_status aethercl_memory(aethercl_machine *machine, uint64_t *used, uint64_t *peak, uint64_t *capacity);

// Opens a queue; they are numbered from 0.
//
// Expects:
// `queue` has room for a number or is NULL.
netcl_status aethercl_queue_open(aethercl_machine *machine, uint32_t *queue);

// Writes a copy of host bytes to device memory into a queue's ring. The source may be changed at once. `fence` may be NULL.
//
// Expects:
// `source` points to `bytes` bytes.
netcl_status aethercl_write(aethercl_machine *machine,
                            uint32_t queue,
                            uint64_t address,
                            const void *source,
                            size_t bytes,
                            aethercl_fence *fence);

// Writes a read-back of device memory into a queue's ring. Once it is done the bytes are at `destination`, then `callback`, which may be NULL, is
// called with `user`, by the thread that waited, rang or looks at the register window. It may call this library. `fence` may be NULL.
//
// Expects:
// `destination` has room for `bytes` bytes until the command is done or the machine is closed.
netcl_status aethercl_read(aethercl_machine *machine,
                           uint32_t queue,
                           uint64_t address,
                           void *destination,
                           size_t bytes,
                           ReadBack callback,
                           void *user,
                           aethercl_fence *fence);

// Writes a copy within device memory into a queue's ring. `fence` may be NULL.
//
// Expects:
// `fence` has room for a fence or is NULL.
netcl_status aethercl_copy(aethercl_machine *machine,
                           uint32_t queue,
                           uint64_t to,
                           uint64_t from,
                           uint64_t bytes,
                           aethercl_fence *fence);

// Writes into a queue's ring that `pattern`, of 1, 2, 4, 8 or 16 bytes, is repeated over device memory. `fence` may be NULL.
//
// Expects:
// `pattern` points to `pattern_bytes` bytes.
netcl_status aethercl_fill(aethercl_machine *machine,
                           uint32_t queue,
                           uint64_t to,
                           uint64_t bytes,
                           const void *pattern,
                           size_t pattern_bytes,
                           aethercl_fence *fence);

// Writes into a queue's ring that it waits until the fence of another queue is there. `fence` may be NULL.
//
// Expects:
// `fence` has room for a fence or is NULL.
netcl_status aethercl_wait_for(aethercl_machine *machine,
                               uint32_t queue,
                               aethercl_fence other,
                               aethercl_fence *fence);

// Rings: the command processor may read what is in the queue's ring. It does when somebody waits, or at `aethercl_run`.
netcl_status aethercl_doorbell(aethercl_machine *machine,
                               uint32_t queue);

// Does everything that was announced. Queues that all wait for each other are an error that names them.
netcl_status aethercl_run(aethercl_machine *machine);

// Waits for a command, and rings for it where nobody did. How it went is the status; when it ran is in `times`, which may be NULL.
//
// Expects:
// `times` has room for them or is NULL.
netcl_status aethercl_wait(aethercl_machine *machine,
                           aethercl_fence fence,
                           aethercl_times *times);

// Builds OpenCL C. What a compiler would print is in `netcl_last_error()` where it does not build. `options` (`-D NAME=1`, …) may be NULL.
//
// Expects:
// `text` is a text, `options` a text or NULL; `program` has room for a handle.
netcl_status aethercl_build(const char *text,
                            const char *options,
                            aethercl_program **program);

// Frees a program. Launches of it that wait are done all the same.
netcl_status aethercl_program_free(aethercl_program *program);

// Writes a launch of a kernel into a queue's ring: `global` work-items in groups of `local`, three sizes each, 1 where a dimension is not used.
// What the checks find does not end it: `aethercl_finding_count`. `fence` may be NULL.
//
// Expects:
// `kernel` is a text; there are `count` arguments, and each size is an array of three.
netcl_status aethercl_launch(aethercl_machine *machine,
                             uint32_t queue,
                             aethercl_program *program,
                             const char *kernel,
                             const aethercl_argument *arguments,
                             size_t count,
                             const uint64_t *global,
                             const uint64_t *local,
                             aethercl_fence *fence);

// Describes a launch in host memory, for a program that writes its LAUNCH packets itself: `descriptor` is what the packet points to. It
// serves one launch.
//
// Expects:
// As `aethercl_launch`; `descriptor` has room for an address.
netcl_status aethercl_describe(aethercl_machine *machine,
                               aethercl_program *program,
                               const char *kernel,
                               const aethercl_argument *arguments,
                               size_t count,
                               const uint64_t *global,
                               const uint64_t *local,
                               uint64_t *descriptor);

// How many findings there are since the last `aethercl_findings_clear`.
//
// Expects:
// `count` has room for a number.
netcl_status aethercl_finding_count(aethercl_machine *machine, size_t *count);

// One of them, counted from 0.
//
// Expects:
// `finding` has room for it.
netcl_status aethercl_finding_at(aethercl_machine *machine, size_t index, aethercl_finding *finding);

// Forgets all findings.
netcl_status aethercl_findings_clear(aethercl_machine *machine);

// What the launch that was done last did.
//
// Expects:
// `counters` has room for them.
netcl_status aethercl_counters_last(aethercl_machine *machine, aethercl_counters *counters);

// What kernels printed since it was last asked for: up to `room` bytes with the zero at the end, and in `length` how many there were without
// it. The text is taken where it fits; `text` NULL asks only for the length.
//
// Expects:
// `text` has room for `room` bytes or is NULL; `length` has room for a number.
netcl_status aethercl_printed(aethercl_machine *machine,
                              char *text,
                              size_t room,
                              size_t *length);

// Writes the timeline so far as a file for ui.perfetto.dev, of a machine that was opened with one.
//
// Expects:
// `path` is a text.
netcl_status aethercl_timeline(aethercl_machine *machine, const char *path);

// Reads a register. docs/aethercl.md has their table.
//
// Expects:
// `value` has room for it.
netcl_status aethercl_register_read(aethercl_machine *machine, uint32_t offset, uint32_t *value);

// Writes a register. One that only the device sets stays as it is.
netcl_status aethercl_register_write(aethercl_machine *machine, uint32_t offset, uint32_t value);

// Maps the machine's registers and rings into the program's memory. From now on a thread of the machine looks at them: a program that writes packets
// into a ring and its tail into DOORBELL needs no other function, and sees FENCE move and IRQ_STATUS set; writing IRQ_CLEAR clears that. Words are
// 32 bits and are read and written as such (volatile, or as C11 atomics); the packets before the doorbell. Mapping once more gives the same
// window. It is there until `aethercl_mmio_unmap` or `aethercl_close`.
//
// Expects:
// `window` has room for the description.
netcl_status aethercl_mmio_map(aethercl_machine *machine,
                               aethercl_mmio *window);

// Takes the window away; the program may no longer touch it.
netcl_status aethercl_mmio_unmap(aethercl_machine *machine);

// Host memory that the copy engines reach at the bus address `bus` and behind it, for packets that a program writes itself: `bytes` bytes, those at
// `source`, or zeros where it is NULL. It stays until `aethercl_unpin`.
//
// Expects:
// `source` points to `bytes` bytes or is NULL; `bus` has room for an address.
netcl_status aethercl_pin(aethercl_machine *machine,
                          const void *source,
                          size_t bytes,
                          uint64_t *bus);

// Gives pinned memory back, with what was copied there: its first `bytes` bytes go to `destination`, which may be NULL.
//
// Expects:
// `destination` has room for `bytes` bytes or is NULL.
netcl_status aethercl_unpin(aethercl_machine *machine,
                            uint64_t bus,
                            void *destination,
                            size_t bytes);

// Loads a model from a GGUF file, a folder in the Hugging Face layout, or the folder of a run. `context` is the tokens that it is to look at, 0 for
// the model's own or as many as fit.
//
// Expects:
// `path` is a text; `model` has room for a handle.
netcl_status netcl_model_load(netcl_device *device,
                              const char *path,
                              size_t context,
                              netcl_model **model);

// Frees a model.
netcl_status netcl_model_free(netcl_model *model);

// Describes a model.
//
// Expects:
// `info` has room for the description.
netcl_status netcl_model_describe(netcl_model *model, netcl_model_info *info);

// Goes on with the text `prompt`. `options` may be NULL for the model's own settings, `said` for a program that wants only the end of it, `generated`
// for one that does not. A prompt longer than the context is an error; nothing is cut. The status is `NETCL_STATUS_STOPPED` where `said` ended it.
//
// Expects:
// `prompt` is a text; `options` and `generated` are NULL or what they say; `said` takes a text that lasts as long as its call.
netcl_status netcl_generate(netcl_model *model,
                            const char *prompt,
                            const netcl_generation *options,
                            Said said,
                            void *user,
                            netcl_generated *generated);

// Writes a command into the simulated GPU's ring, rings, and waits until its fence is there. Answers 1, or 0.
//
// Expects:
// `command` points to a command.
int submit_command(int gpu_index, const simulated_command *command);

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
int simulated_kernel_read_async(int gpu_index,
                                unsigned long long address,
                                size_t size,
                                void *destination,
                                ReadBack callback,
                                void *user);

// Waits until every read-back of `simulated_kernel_read_async` is done and its callback has returned. Not from a callback.
void simulated_finish(int gpu_index);

// Takes the simulated GPU away, with all its memory; the next call has a new one.
void simulated_shutdown(void);

// Tells in words what the simulated GPU does: level 0 nothing, 1 a line a command, 2 each step from the ring to the interrupt, 3 also registers
// and compute units. Each line goes to `sink` with `user`, or to standard error where `sink` is NULL. `sink` may not call this library.
//
// Expects:
// `sink` takes a text and `user` from any thread.
netcl_status simulated_set_log(int level,
                               TraceSink sink,
                               void *user);

// Compute units of the GPU that `initialize_gpu` opened under this index, or 16 where none is open.
unsigned int simulated_get_compute_unit_count(int gpu_index);

// Opens a device: `auto`, `sim`, `sim:<profile>`, `<platform>:<number>`, or a number; NULL for `auto`.
//
// Expects:
// `name` is a text or NULL; `device` has room for a handle.
netcl_status netcl_device_open(const char *name, netcl_device **device);

// Closes a device's handle. The device itself stays until its last tensor is freed.
netcl_status netcl_device_close(netcl_device *device);

// Waits until the device has done everything that was asked of it. What failed meanwhile is the status.
netcl_status netcl_device_finish(netcl_device *device);

// Name, vendor and driver of a device, in one line of at most `room` bytes with the zero at the end; in `length` how many there are without it.
// `text` NULL asks only for the length.
//
// Expects:
// `text` has room for `room` bytes or is NULL; `length` has room for a number or is NULL.
netcl_status netcl_device_describe(netcl_device *device,
                                   char *text,
                                   size_t room,
                                   size_t *length);

// From here on no operation of this thread is recorded for gradients, until `netcl_no_grad_end`. Scopes may lie in each other.
netcl_status netcl_no_grad_begin(void);

// Ends the scope that `netcl_no_grad_begin` began last on this thread.
netcl_status netcl_no_grad_end(void);

// Runs the operation called `name`: `input_count` tensors, NULL for an optional one that is left out; `attribute_count` attributes, those not given have
// their defaults. Its results are handles at `outputs`, which has room for `room`; `output_count`, which may be NULL, says how many they are. Gradients
// flow through it, unless the thread is in a scope of `netcl_no_grad_begin`. `netcl_op_describe` says what an operation takes.
//
// Expects:
// `name` is a text; the arrays are as long as said, and attributes point to what they say.
netcl_status netcl_op(const char *name,
                      netcl_tensor *const *inputs,
                      size_t input_count,
                      const netcl_attribute *attributes,
                      size_t attribute_count,
                      netcl_tensor **outputs,
                      size_t room,
                      size_t *output_count);

// How many operations there are.
size_t netcl_op_count(void);

// The name of one of them, counted from 0; NULL behind the last. It lasts as long as the program.
const char *netcl_op_name(size_t index);

// What an operation takes and gives in one line, and a paragraph that describes it; NULL where there is none of that name. It lasts as long as the program.
//
// Expects:
// `name` is a text.
const char *netcl_op_describe(const char *name);

// A tensor with the elements at `data`, without gaps, the last axis fastest: `rank` sizes at `shape`, and exactly as many `bytes` as they take. With
// `data` NULL, and `bytes` 0, its elements are zeros. `dtype` is `NETCL_F32`, ….
//
// Expects:
// `shape` points to `rank` sizes, `data` to `bytes` bytes; `out` has room for a handle.
netcl_status netcl_tensor_create(netcl_device *device,
                                 int dtype,
                                 const size_t *shape,
                                 size_t rank,
                                 const void *data,
                                 size_t bytes,
                                 netcl_tensor **out);

// Frees a tensor's handle. Its memory goes back when nothing else uses it: another handle, a view, or a result that still needs it for a gradient.
netcl_status netcl_tensor_free(netcl_tensor *tensor);

// Another handle of the same tensor: one memory, one gradient.
//
// Expects:
// `out` has room for a handle.
netcl_status netcl_tensor_clone(netcl_tensor *tensor, netcl_tensor **out);

// The same elements apart from what made them: no gradient flows through it.
//
// Expects:
// `out` has room for a handle.
netcl_status netcl_tensor_detach(netcl_tensor *tensor, netcl_tensor **out);

// The same memory as a parameter, which collects its gradient. `name` appears in errors.
//
// Expects:
// `name` is a text; `out` has room for a handle.
netcl_status netcl_tensor_parameter(netcl_tensor *tensor, const char *name, netcl_tensor **out);

// The number of axes in `rank`, and their sizes at `shape`, which has room for `room` of them. `shape` NULL asks only for the number.
//
// Expects:
// `shape` has room for `room` sizes or is NULL; `rank` has room for a number.
netcl_status netcl_tensor_shape(netcl_tensor *tensor,
                                size_t *shape,
                                size_t room,
                                size_t *rank);

// The storage type, `NETCL_F32`, ….
//
// Expects:
// `dtype` has room for a number.
netcl_status netcl_tensor_dtype(netcl_tensor *tensor, int *dtype);

// The elements, in order, to `data`, which has room for exactly their `bytes`. Waits for what makes them.
//
// Expects:
// `data` has room for `bytes` bytes.
netcl_status netcl_tensor_read(netcl_tensor *tensor, void *data, size_t bytes);

// Overwrites the elements of a tensor without gaps with exactly as many `bytes` at `data`. A result that needs the old ones for its gradient then has
// none: that is an error of `netcl_backward`.
//
// Expects:
// `data` points to `bytes` bytes.
netcl_status netcl_tensor_write(netcl_tensor *tensor,
                                const void *data,
                                size_t bytes);

// The gradient that a parameter has collected; NULL in `out` where there is none.
//
// Expects:
// `out` has room for a handle.
netcl_status netcl_tensor_grad(netcl_tensor *tensor, netcl_tensor **out);

// Forgets the gradient that a parameter has collected.
netcl_status netcl_tensor_zero_grad(netcl_tensor *tensor);

// Gradients of a result with respect to every parameter that it was made of, added to what they have collected. `gradient` is that of the result itself;
// NULL for a result of one element, whose gradient is 1.
netcl_status netcl_backward(netcl_tensor *result,
                            netcl_tensor *gradient);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* NETCL_H */
