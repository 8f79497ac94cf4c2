// libnetcl: tensors and language models, for programs in C and in every language that calls C.
// netcl_driver.h has the driver's functions, aethercl.h the simulated GPU. Both include this file.
//
// docs/c.md is the guide. Handles are checked: a freed, foreign or random one is an error, never a crash. A call that
// fails returns an error code, and netcl_last_error() says why. Every function may be called from any thread.
// Made from the sources by `make capi`; a test fails where it is out of date.

#ifndef NETCL_H
#define NETCL_H

#include <stddef.h>
#include <stdint.h>

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

// An opened device.
typedef struct netcl_device netcl_device;

// A language model on a device.
typedef struct netcl_model netcl_model;

// A tensor on a device.
typedef struct netcl_tensor netcl_tensor;

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
typedef int (*netcl_text_callback)(const char *text, void *user);

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

// Why the latest call of this thread that failed did so: which function, what was expected, what was found. Empty where none failed.
// Stays as it is when a call succeeds; the text lasts until the next call of this thread that fails.
const char *netcl_last_error(void);

// The version of the library, such as `0.1.0`.
const char *netcl_version(void);

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
                            netcl_text_callback said,
                            void *user,
                            netcl_generated *generated);

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
