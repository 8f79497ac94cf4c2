// libnetcl: AetherCL, the simulated GPU: memory, queues, doorbells, registers, kernels, findings and counters.
//
// docs/c.md is the guide. Handles are checked: a freed, foreign or random one is an error, never a crash. A call that
// fails returns an error code, and netcl_last_error() says why. Every function may be called from any thread.
// Made from the sources by `make capi`; a test fails where it is out of date.

#ifndef AETHERCL_H
#define AETHERCL_H

#include "netcl.h"

// A buffer that the kernel reads and writes: `address` and `bytes`.
#define AETHERCL_BUFFER 0

// A buffer that the kernel only reads; a store there is a finding.
#define AETHERCL_BUFFER_READ 1

// A scalar or vector: `bytes` bytes at `data`.
#define AETHERCL_VALUE 2

// Local memory of `bytes` bytes.
#define AETHERCL_LOCAL 3

// A simulated GPU.
typedef struct aethercl_machine aethercl_machine;

// A program that was built.
typedef struct aethercl_program aethercl_program;

// Takes a line of the trace.
typedef void (*aethercl_trace_callback)(const char *line, void *user);

// How a machine is opened. Zeros are the defaults.
typedef struct {
  // Bytes of memory; 0 for the profile's.
  uint64_t memory;
  // What kernels are checked for: names of checks with commas between, `all`, or NULL for nothing.
  const char *checks;
  // What is told in words: 0 nothing, 1 a line a command, 2 each step, 3 also registers and what each compute unit does.
  int trace_level;
  // Takes each line of that; NULL for standard error. It may not call the machine.
  aethercl_trace_callback trace;
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
typedef void (*aethercl_read_callback)(netcl_status status, void *user);

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

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

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
                           aethercl_read_callback callback,
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
                           aethercl_read_callback callback,
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

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* AETHERCL_H */
