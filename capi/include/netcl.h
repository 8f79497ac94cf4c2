// libnetcl: tensors and language models, for programs in C and in every language that calls C.
// netcl_driver.h has the driver's functions, aethercl.h the simulated GPU. Both include this file.
//
// docs/c.md is the guide. Handles are checked: a freed, foreign or random handle is an error, never a crash. If a call
// fails, it returns an error code, and netcl_last_error() returns the reason. Every function may be called from any thread.
// Generated from the sources by `make capi`. A test fails if this file is out of date.

#ifndef NETCL_H
#define NETCL_H

#include <stddef.h>
#include <stdint.h>

// No value, for an optional attribute.
#define NETCL_NONE 0

// A floating-point number, in `number`.
#define NETCL_NUMBER 1

// An integer, in `integer`.
#define NETCL_INTEGER 2

// A Boolean, in `integer`: 0 is false.
#define NETCL_BOOL 3

// An array of `count` integers at `integers`, such as a shape, axes or lengths.
#define NETCL_INTEGERS 4

// A string, in `text`.
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

// A mask, such as the result of a comparison: one byte per element, 0 or 1. In input data, every nonzero byte becomes 1.
#define NETCL_MASK 5

// The status of a call. For every status except `NETCL_STATUS_OK`, `netcl_last_error()` returns the message.
typedef enum {
  // Success.
  NETCL_STATUS_OK = 0,
  // The shapes do not match each other or the operation.
  NETCL_STATUS_SHAPE = 1,
  // The operation does not support a tensor's dtype.
  NETCL_STATUS_DTYPE = 2,
  // Unknown device, missing OpenCL library, lost device, or objects of different devices.
  NETCL_STATUS_DEVICE = 3,
  // Out of memory, or above a limit of the device.
  NETCL_STATUS_MEMORY = 4,
  // A kernel did not compile. The message contains the compiler's log.
  NETCL_STATUS_BUILD = 5,
  // A kernel, copy or queue failed, or the simulated GPU's checks reported a finding.
  NETCL_STATUS_LAUNCH = 6,
  // This device or version does not support the request.
  NETCL_STATUS_UNSUPPORTED = 7,
  // The contents of a file, a name or a string are invalid.
  NETCL_STATUS_FORMAT = 8,
  // Reading or writing a file failed.
  NETCL_STATUS_IO = 9,
  // A defect of netcl. Please report it.
  NETCL_STATUS_INTERNAL = 10,
  // An invalid handle: freed, random, or of another kind of object.
  NETCL_STATUS_HANDLE = 11,
  // An invalid argument: a null pointer, a negative size, or an index out of range.
  NETCL_STATUS_ARGUMENT = 12,
  // A callback requested a stop.
  NETCL_STATUS_STOPPED = 13,
} netcl_status;

// An opened device.
typedef struct netcl_device netcl_device;

// A language model on a device.
typedef struct netcl_model netcl_model;

// A tensor on a device.
typedef struct netcl_tensor netcl_tensor;

// Properties of a model.
typedef struct {
  // Number of tokens in the vocabulary.
  size_t vocab;
  // Context length in tokens, as loaded.
  size_t context;
  // Context length in tokens, according to the model's files.
  size_t trained_context;
  // Number of layers.
  size_t layers;
  // Width of the residual stream.
  size_t width;
  // Number of parameters.
  uint64_t parameters;
  // Storage type of the dense weights, `NETCL_F32`, ….
  int dtype;
} netcl_model_info;

// Settings for generating text. A structure of zeros selects the model's own settings and greedy decoding; see each field.
typedef struct {
  // Maximum number of new tokens; 0 for as many as the context allows.
  size_t max_tokens;
  // Sampling temperature. 0 selects greedy decoding; a negative value selects the model's own setting.
  float temperature;
  // Number of most likely tokens to sample from; 0 selects the model's own setting.
  size_t top_k;
  // Sampling is limited to the most likely tokens whose total probability reaches this value; 0 selects the model's own setting.
  float top_p;
  // Seed of the sampler. The same seed gives the same text.
  uint64_t seed;
  // String that ends the text, or NULL.
  const char *stop;
  // If not 0, names of control tokens in the prompt are parsed as these tokens instead of as text.
  int special;
} netcl_generation;

// Callback that receives the text as it is generated, in whole characters. A nonzero return value stops the generation.
typedef int (*netcl_text_callback)(const char *text, void *user);

// Result of generating text.
typedef struct {
  // Number of tokens in the prompt.
  size_t prompt_tokens;
  // Number of new tokens.
  size_t tokens;
  // Prompt tokens per second.
  double prompt_speed;
  // New tokens per second.
  double speed;
  // Reason for the end: 0 an end-of-text token, 1 the stop string, 2 `max_tokens`, 3 the context is full, 4 `said` requested a stop.
  int finish;
} netcl_generated;

// An attribute of an operation: an argument that is not a tensor. Only the fields that belong to `kind` are read.
typedef struct {
  // Name of the attribute.
  const char *name;
  // Kind of the value: `NETCL_NUMBER`, `NETCL_INTEGER`, ….
  int kind;
  // Integer, Boolean or storage type.
  int64_t integer;
  // Floating-point number.
  double number;
  // String.
  const char *text;
  // Array of integers.
  const int64_t *integers;
  // Number of elements of `integers`.
  size_t count;
} netcl_attribute;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Returns the error message of this thread's latest failed call: the function, what was expected, and what was found. Returns an empty
// string if no call has failed. A successful call does not change the message. The string is valid until the next failed call of this
// thread.
const char *netcl_last_error(void);

// Returns the version of the library, such as `0.1.0`.
const char *netcl_version(void);

// Loads a model from a GGUF file, a folder in the Hugging Face layout, or the folder of a training run. `context` is the context length in
// tokens. 0 selects the model's own context length, or as much as fits into memory.
//
// Expects:
// `path` is a string; `model` points to space for a handle.
netcl_status netcl_model_load(netcl_device *device,
                              const char *path,
                              size_t context,
                              netcl_model **model);

// Frees a model.
netcl_status netcl_model_free(netcl_model *model);

// Writes the properties of a model to `info`.
//
// Expects:
// `info` points to space for the description.
netcl_status netcl_model_describe(netcl_model *model, netcl_model_info *info);

// Generates text after `prompt`. `options` may be NULL for the model's own settings. `said` receives the text and may be NULL. `generated`
// receives the result and may be NULL. A prompt that is longer than the context is an error; it is never truncated. The status is
// `NETCL_STATUS_STOPPED` if `said` requested a stop.
//
// Expects:
// `prompt` is a string; `options` and `generated` are NULL or point to their structures. The string passed to `said` is valid during that call.
netcl_status netcl_generate(netcl_model *model,
                            const char *prompt,
                            const netcl_generation *options,
                            netcl_text_callback said,
                            void *user,
                            netcl_generated *generated);

// Opens a device: `auto`, `sim`, `sim:<profile>`, `<platform>:<number>` or a number. NULL means `auto`.
//
// Expects:
// `name` is a string or NULL; `device` points to space for a handle.
netcl_status netcl_device_open(const char *name, netcl_device **device);

// Closes a device's handle. The device stays open until its last tensor is freed.
netcl_status netcl_device_close(netcl_device *device);

// Waits until the device has finished all submitted work. Returns the error if any of that work failed.
netcl_status netcl_device_finish(netcl_device *device);

// Writes the name, vendor and driver of a device to `text`, on one line. `room` is the size of `text` in bytes, including the terminating
// zero. `length` receives the length without the zero. If `text` is NULL, only the length is returned.
//
// Expects:
// `text` points to space for `room` bytes or is NULL; `length` points to space for a number or is NULL.
netcl_status netcl_device_describe(netcl_device *device,
                                   char *text,
                                   size_t room,
                                   size_t *length);

// Stops recording operations of this thread for gradients, until `netcl_no_grad_end`. Scopes can be nested.
netcl_status netcl_no_grad_begin(void);

// Ends the innermost scope that `netcl_no_grad_begin` started on this thread.
netcl_status netcl_no_grad_end(void);

// Runs the operation `name` on `input_count` tensors and `attribute_count` attributes. Pass NULL for an optional input that is omitted.
// Attributes that are not given have their default values. The results are stored as handles in `outputs`, which points to space for `room`.
// `output_count` receives their number and may be NULL. Gradients flow through the operation, unless the thread is in a scope of
// `netcl_no_grad_begin`. `netcl_op_describe` describes the inputs and attributes of an operation.
//
// Expects:
// `name` is a string; the arrays have the given lengths, and the attributes' pointers match their kinds.
netcl_status netcl_op(const char *name,
                      netcl_tensor *const *inputs,
                      size_t input_count,
                      const netcl_attribute *attributes,
                      size_t attribute_count,
                      netcl_tensor **outputs,
                      size_t room,
                      size_t *output_count);

// Returns the number of operations.
size_t netcl_op_count(void);

// Returns the name of an operation by its index, which starts at 0, or NULL after the last one. The string is valid until the program
// ends.
const char *netcl_op_name(size_t index);

// Returns a description of the operation `name`: a line with inputs, attributes and results, and a paragraph. Returns NULL if the
// operation does not exist. The string is valid until the program ends.
//
// Expects:
// `name` is a string.
const char *netcl_op_describe(const char *name);

// Creates a dense tensor from the elements at `data`, in row-major order (the last axis varies fastest). `shape` has `rank` sizes, and
// `bytes` must be the exact size of the elements. If `data` is NULL and `bytes` is 0, the elements are zeros. `dtype` is `NETCL_F32`, ….
//
// Expects:
// `shape` points to `rank` sizes, `data` to `bytes` bytes; `out` points to space for a handle.
netcl_status netcl_tensor_create(netcl_device *device,
                                 int dtype,
                                 const size_t *shape,
                                 size_t rank,
                                 const void *data,
                                 size_t bytes,
                                 netcl_tensor **out);

// Frees a tensor's handle. The memory is released when it has no other users: handles, views, or results that need it for a gradient.
netcl_status netcl_tensor_free(netcl_tensor *tensor);

// Creates another handle for the same tensor. Both share memory and gradient.
//
// Expects:
// `out` points to space for a handle.
netcl_status netcl_tensor_clone(netcl_tensor *tensor, netcl_tensor **out);

// Creates a tensor that shares the elements but is detached from the recorded operations: no gradient flows through it.
//
// Expects:
// `out` points to space for a handle.
netcl_status netcl_tensor_detach(netcl_tensor *tensor,
                                 netcl_tensor **out);

// Creates a parameter that shares the memory and collects its gradient. `name` appears in errors.
//
// Expects:
// `name` is a string; `out` points to space for a handle.
netcl_status netcl_tensor_parameter(netcl_tensor *tensor, const char *name, netcl_tensor **out);

// Writes the number of axes to `rank` and their sizes to `shape`, which points to space for `room` sizes. If `shape` is NULL, only the number is
// returned.
//
// Expects:
// `shape` points to space for `room` sizes or is NULL; `rank` points to space for a number.
netcl_status netcl_tensor_shape(netcl_tensor *tensor,
                                size_t *shape,
                                size_t room,
                                size_t *rank);

// Writes the storage type, `NETCL_F32`, …, to `dtype`.
//
// Expects:
// `dtype` points to space for a number.
netcl_status netcl_tensor_dtype(netcl_tensor *tensor, int *dtype);

// Copies the elements in row-major order to `data`. `bytes` must be their exact size. Waits until they are computed.
//
// Expects:
// `data` points to space for `bytes` bytes.
netcl_status netcl_tensor_read(netcl_tensor *tensor,
                               void *data,
                               size_t bytes);

// Overwrites the elements of a dense tensor with the `bytes` bytes at `data`, which must be their exact size. If a recorded result needs
// the old elements for its gradient, `netcl_backward` then returns an error.
//
// Expects:
// `data` points to `bytes` bytes.
netcl_status netcl_tensor_write(netcl_tensor *tensor,
                                const void *data,
                                size_t bytes);

// Writes the accumulated gradient of a parameter to `out`, or NULL if it does not have one.
//
// Expects:
// `out` points to space for a handle.
netcl_status netcl_tensor_grad(netcl_tensor *tensor, netcl_tensor **out);

// Clears the accumulated gradient of a parameter.
netcl_status netcl_tensor_zero_grad(netcl_tensor *tensor);

// Computes the gradients of a result with respect to all parameters that it depends on, and adds them to the parameters' gradients.
// `gradient` is the gradient of the result itself. It may be NULL for a result of one element, whose gradient is then 1.
netcl_status netcl_backward(netcl_tensor *result,
                            netcl_tensor *gradient);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* NETCL_H */
