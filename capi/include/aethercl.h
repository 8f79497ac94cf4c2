// libnetcl: AetherCL, the simulated GPU: memory, queues, doorbells, registers, kernels, findings and counters.
//
// docs/c.md is the guide. Handles are checked: a freed, foreign or random handle is an error, never a crash. If a call
// fails, it returns an error code, and netcl_last_error() returns the reason. Every function may be called from any thread.
// Generated from the sources by `make capi`. A test fails if this file is out of date.

#ifndef AETHERCL_H
#define AETHERCL_H

#include "netcl.h"

// A buffer that the kernel reads and writes, given by `address` and `bytes`.
#define AETHERCL_BUFFER 0

// A buffer that the kernel only reads, given by `address` and `bytes`. A store to it is a finding.
#define AETHERCL_BUFFER_READ 1

// A scalar or vector of `bytes` bytes at `data`.
#define AETHERCL_VALUE 2

// Local memory of `bytes` bytes.
#define AETHERCL_LOCAL 3

// A simulated GPU.
typedef struct aethercl_machine aethercl_machine;

// A compiled program.
typedef struct aethercl_program aethercl_program;

// Callback that receives a line of the trace.
typedef void (*aethercl_trace_callback)(const char *line, void *user);

// Options for opening a machine. Zeros are the defaults.
typedef struct {
  // Size of device memory in bytes; 0 selects the profile's size.
  uint64_t memory;
  // Checks to run on kernels: names separated by commas, `all`, or NULL for none.
  const char *checks;
  // Detail of the trace: 0 none, 1 one line per command, 2 each step, 3 also registers and the work of each compute unit.
  int trace_level;
  // Callback that receives each line of the trace; NULL selects standard error. It must not call the machine.
  aethercl_trace_callback trace;
  // Pointer that is passed to `trace`.
  void *trace_user;
  // If not 0, a timeline is recorded. `aethercl_timeline` writes it to a file.
  int timeline;
} aethercl_options;

// Identifies a command. The command is complete when the fence of its queue has reached `value`.
typedef struct {
  // Number of the queue.
  uint32_t queue;
  // Fence value that marks completion.
  uint64_t value;
} aethercl_fence;

// Callback for a completed read-back. `status` is its result.
typedef void (*aethercl_read_callback)(netcl_status status, void *user);

// Execution times of a command in ns of the simulated clock.
typedef struct {
  // Time of the doorbell.
  uint64_t queued_ns;
  // Start of the execution.
  uint64_t start_ns;
  // End of the execution.
  uint64_t end_ns;
} aethercl_times;

// An argument of a kernel.
typedef struct {
  // `AETHERCL_BUFFER`, `AETHERCL_BUFFER_READ`, `AETHERCL_VALUE` or `AETHERCL_LOCAL`.
  int kind;
  // Device address of a buffer.
  uint64_t address;
  // Size in bytes.
  uint64_t bytes;
  // Pointer to a value.
  const void *data;
} aethercl_argument;

// A finding of the checks at one place of a kernel. Its strings are valid until the findings are cleared or the machine is closed.
typedef struct {
  // Kind of finding: `race-in-group`, `read-outside`, `uninitialized`, …
  const char *kind;
  // Name of the kernel.
  const char *kernel;
  // Line in the kernel source, starting at 1.
  uint32_t line;
  // Column, starting at 1.
  uint32_t column;
  // Number of occurrences at this place.
  uint64_t count;
  // Description: what happened, the source line with a caret, and the work-items.
  const char *text;
} aethercl_finding;

// Counters of a launch, as the hardware would report them, and the modeled time.
typedef struct {
  // Number of work-groups.
  uint64_t groups;
  // Number of work-items.
  uint64_t items;
  // Instructions issued by SIMD groups.
  uint64_t issued;
  // Masked-off lanes of these instructions.
  uint64_t lanes_idle;
  // Load requests to global memory.
  uint64_t global_load_requests;
  // Bytes requested by these loads.
  uint64_t global_load_bytes;
  // Sectors of 32 bytes moved for these loads.
  uint64_t global_load_sectors;
  // Store requests to global memory.
  uint64_t global_store_requests;
  // Bytes stored.
  uint64_t global_store_bytes;
  // Sectors of 32 bytes moved for these stores.
  uint64_t global_store_sectors;
  // Requests to local memory.
  uint64_t local_requests;
  // Passes through the banks of local memory. Without bank conflicts, equal to `local_requests`.
  uint64_t local_passes;
  // Local memory of a work-group in bytes.
  uint64_t local_bytes;
  // 32-bit registers per work-item.
  uint32_t registers;
  // Modeled time on the compute units in ns.
  uint64_t ns;
  // Limiting resource, such as `device memory`.
  const char *bound;
} aethercl_counters;

// Location and layout of the register window.
typedef struct {
  // The registers, 32 bits each. The register at offset `o` is `registers[o / 4]`.
  uint32_t *registers;
  // Size of the window in bytes.
  size_t bytes;
  // Offset in bytes from the start of the window to the ring of queue 0.
  size_t rings;
  // Distance in bytes between the rings of consecutive queues.
  size_t ring_stride;
} aethercl_mmio;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Opens a machine. `profile` is the name of the modeled GPU (`teaching`, `h200`, …) or of a `.toml` file; NULL selects `teaching`.
// `options` may be NULL.
//
// Expects:
// `profile` is NULL or a string; `options` is NULL or points to options; `machine` points to space for a handle.
netcl_status aethercl_open(const char *profile,
                           const aethercl_options *options,
                           aethercl_machine **machine);

// Closes a machine and frees all its resources. Its register window must not be accessed afterwards.
netcl_status aethercl_close(aethercl_machine *machine);

// Allocates uninitialized device memory. `tag` is its name in findings and traces; NULL selects `buffer`.
//
// Expects:
// `tag` is NULL or a string; `address` points to space for an address.
netcl_status aethercl_allocate(aethercl_machine *machine, uint64_t bytes, const char *tag, uint64_t *address);

// Frees device memory. Commands still in a queue that use it fail.
netcl_status aethercl_free(aethercl_machine *machine, uint64_t address);

// Returns the bytes of device memory in use, the peak so far, and the capacity. Each pointer may be NULL.
//
// Expects:
// Each points to space for a number or is NULL.
netcl_status aethercl_memory(aethercl_machine *machine, uint64_t *used, uint64_t *peak, uint64_t *capacity);

// Opens a queue. Queues are numbered from 0.
//
// Expects:
// `queue` points to space for a number or is NULL.
netcl_status aethercl_queue_open(aethercl_machine *machine, uint32_t *queue);

// Enqueues a copy from host memory to device memory. The source may be changed as soon as the call returns. `fence` may be NULL.
//
// Expects:
// `source` points to `bytes` bytes.
netcl_status aethercl_write(aethercl_machine *machine,
                            uint32_t queue,
                            uint64_t address,
                            const void *source,
                            size_t bytes,
                            aethercl_fence *fence);

// Enqueues a copy from device memory to host memory. When it is complete, the bytes are at `destination`. Then `callback`, which may be
// NULL, is called with `user` on the thread that waits, rings the doorbell, or polls the register window. The callback may call this
// library. `fence` may be NULL.
//
// Expects:
// `destination` points to space for `bytes` bytes until the command is complete or the machine is closed.
netcl_status aethercl_read(aethercl_machine *machine,
                           uint32_t queue,
                           uint64_t address,
                           void *destination,
                           size_t bytes,
                           aethercl_read_callback callback,
                           void *user,
                           aethercl_fence *fence);

// Enqueues a copy within device memory. `fence` may be NULL.
//
// Expects:
// `fence` points to space for a fence or is NULL.
netcl_status aethercl_copy(aethercl_machine *machine,
                           uint32_t queue,
                           uint64_t to,
                           uint64_t from,
                           uint64_t bytes,
                           aethercl_fence *fence);

// Enqueues a fill: `pattern`, of 1, 2, 4, 8 or 16 bytes, is repeated over `bytes` bytes of device memory. `fence` may be NULL.
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

// Enqueues a wait: the queue waits until the fence of another queue is reached. `fence` may be NULL.
//
// Expects:
// `fence` points to space for a fence or is NULL.
netcl_status aethercl_wait_for(aethercl_machine *machine,
                               uint32_t queue,
                               aethercl_fence other,
                               aethercl_fence *fence);

// Rings the doorbell: the command processor may now read the queue's ring. It does so at the next wait or `aethercl_run`.
netcl_status aethercl_doorbell(aethercl_machine *machine,
                               uint32_t queue);

// Runs all announced commands. If all queues wait for each other, the call fails with an error that names them.
netcl_status aethercl_run(aethercl_machine *machine);

// Waits for a command. Rings its doorbell first, if this has not been done. The status is the result of the command. `times` receives its
// execution times and may be NULL.
//
// Expects:
// `times` points to space for the times or is NULL.
netcl_status aethercl_wait(aethercl_machine *machine,
                           aethercl_fence fence,
                           aethercl_times *times);

// Compiles OpenCL C source. If this fails, `netcl_last_error()` contains the compiler's messages. `options` (`-D NAME=1`, …) may be NULL.
//
// Expects:
// `text` is a string, `options` a string or NULL; `program` points to space for a handle.
netcl_status aethercl_build(const char *text,
                            const char *options,
                            aethercl_program **program);

// Frees a program. Launches that are already enqueued still run.
netcl_status aethercl_program_free(aethercl_program *program);

// Enqueues the launch of a kernel: `global` work-items in groups of `local`. Both are arrays of three sizes, with 1 for unused dimensions.
// A finding of the checks does not make the launch fail; see `aethercl_finding_count`. `fence` may be NULL.
//
// Expects:
// `kernel` is a string; `arguments` has `count` elements; `global` and `local` have three elements each.
netcl_status aethercl_launch(aethercl_machine *machine,
                             uint32_t queue,
                             aethercl_program *program,
                             const char *kernel,
                             const aethercl_argument *arguments,
                             size_t count,
                             const uint64_t *global,
                             const uint64_t *local,
                             aethercl_fence *fence);

// Writes a launch descriptor to host memory, for programs that write LAUNCH packets themselves. `descriptor` receives the address for the
// packet. Each descriptor can be used for one launch.
//
// Expects:
// The same as for `aethercl_launch`; `descriptor` points to space for an address.
netcl_status aethercl_describe(aethercl_machine *machine,
                               aethercl_program *program,
                               const char *kernel,
                               const aethercl_argument *arguments,
                               size_t count,
                               const uint64_t *global,
                               const uint64_t *local,
                               uint64_t *descriptor);

// Returns the number of findings since the last `aethercl_findings_clear`.
//
// Expects:
// `count` points to space for a number.
netcl_status aethercl_finding_count(aethercl_machine *machine, size_t *count);

// Returns a finding by its index, which starts at 0.
//
// Expects:
// `finding` points to space for the finding.
netcl_status aethercl_finding_at(aethercl_machine *machine, size_t index, aethercl_finding *finding);

// Clears all findings.
netcl_status aethercl_findings_clear(aethercl_machine *machine);

// Returns the counters of the launch that completed last.
//
// Expects:
// `counters` points to space for the counters.
netcl_status aethercl_counters_last(aethercl_machine *machine, aethercl_counters *counters);

// Returns the `printf` output of kernels since the last call. `room` is the size of `text` in bytes, including the terminating zero.
// `length` receives the length without the zero. The output is consumed if it fits. If `text` is NULL, only the length is returned.
//
// Expects:
// `text` points to space for `room` bytes or is NULL; `length` points to space for a number.
netcl_status aethercl_printed(aethercl_machine *machine,
                              char *text,
                              size_t room,
                              size_t *length);

// Writes the timeline so far to a file for ui.perfetto.dev. The machine must have been opened with a timeline.
//
// Expects:
// `path` is a string.
netcl_status aethercl_timeline(aethercl_machine *machine,
                               const char *path);

// Reads a register. docs/aethercl.md lists the registers.
//
// Expects:
// `value` points to space for the register's value.
netcl_status aethercl_register_read(aethercl_machine *machine, uint32_t offset, uint32_t *value);

// Writes a register. Read-only registers keep their value.
netcl_status aethercl_register_write(aethercl_machine *machine, uint32_t offset, uint32_t value);

// Maps the machine's registers and rings into the program's memory. A thread of the machine then polls them. A program can write packets
// into a ring and the ring's tail into DOORBELL, without calling other functions. It then sees FENCE advance and IRQ_STATUS set; writing
// IRQ_CLEAR clears the status. Access the window in 32-bit words, either volatile or as C11 atomics, and write the packets before the
// doorbell. Mapping again returns the same window. The window is valid until `aethercl_mmio_unmap` or `aethercl_close`.
//
// Expects:
// `window` points to space for the description.
netcl_status aethercl_mmio_map(aethercl_machine *machine,
                               aethercl_mmio *window);

// Unmaps the window. The program must not access it afterwards.
netcl_status aethercl_mmio_unmap(aethercl_machine *machine);

// Allocates `bytes` bytes of host memory that the copy engines reach at the bus address `bus`, for packets that a program writes itself.
// The memory contains a copy of `source`, or zeros if `source` is NULL. It is valid until `aethercl_unpin`.
//
// Expects:
// `source` points to `bytes` bytes or is NULL; `bus` points to space for an address.
netcl_status aethercl_pin(aethercl_machine *machine,
                          const void *source,
                          size_t bytes,
                          uint64_t *bus);

// Frees pinned memory. Its first `bytes` bytes are copied to `destination`, which may be NULL.
//
// Expects:
// `destination` points to space for `bytes` bytes or is NULL.
netcl_status aethercl_unpin(aethercl_machine *machine, uint64_t bus, void *destination, size_t bytes);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* AETHERCL_H */
