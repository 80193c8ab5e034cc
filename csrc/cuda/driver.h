#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "csrc/base/error.h"

/// The CUDA driver's functions that aiacc calls, as a table: the real one is loaded at run time, so
/// that one build serves machines with and without GPUs; tests bring their own. The types have the
/// binary form of those in cuda.h, which is not needed to compile this.
namespace aiacc {

using CudaResult = int;
using CudaDevice = int;
using CudaAddress = unsigned long long;
using CudaContext = struct CudaContextTag*;
using CudaStream = struct CudaStreamTag*;
using CudaEvent = struct CudaEventTag*;
using CudaModule = struct CudaModuleTag*;
using CudaFunction = struct CudaFunctionTag*;
using CudaHostFunction = void (*)(void* argument);

inline constexpr CudaResult kCudaSuccess = 0;
inline constexpr CudaResult kCudaInvalidValue = 1;
inline constexpr CudaResult kCudaOutOfMemory = 2;
inline constexpr CudaResult kCudaDeinitialized = 4;
inline constexpr CudaResult kCudaInvalidContext = 201;
inline constexpr CudaResult kCudaInvalidHandle = 400;
inline constexpr CudaResult kCudaNotFound = 500;
inline constexpr CudaResult kCudaNotReady = 600;
inline constexpr CudaResult kCudaCaptureUnsupported = 900;

inline constexpr unsigned kCudaStreamNonBlocking = 1;   ///< does not wait for the legacy stream
inline constexpr unsigned kCudaEventDisableTiming = 2;  ///< cheaper to record
inline constexpr unsigned kCudaHostPortable = 1;        ///< pinned for every context

inline constexpr unsigned kCudaWaitValueAtLeast = 0;  ///< cyclic

inline constexpr int kCudaCaptureGlobal = 0;  ///< modes of a thread; the first is the default
inline constexpr int kCudaCaptureRelaxed = 2;

inline constexpr int kCudaMultiprocessors = 16;  ///< attributes of a device
inline constexpr int kCudaCapabilityMajor = 75;
inline constexpr int kCudaCapabilityMinor = 76;

/// Every function returns a CudaResult and acts on the context that is current in the calling
/// thread, except where it is given another thing to act on. cuda.h documents them under the names
/// that stand in driver.cc. There is none that waits until the GPU has done something:
/// `event_query` asks, and `launch_host_function` tells. Those of the last group may wait for it
/// nevertheless; they are for start and end, not for a step.
struct CudaDriver {
  CudaResult (*init)(unsigned flags);
  CudaResult (*driver_version)(int* version);
  CudaResult (*error_name)(CudaResult error, const char** text);
  CudaResult (*error_string)(CudaResult error, const char** text);

  CudaResult (*device_count)(int* count);
  CudaResult (*device_get)(CudaDevice* device, int ordinal);
  CudaResult (*device_pci_address)(char* address, int bytes, CudaDevice device);
  CudaResult (*device_attribute)(int* value, int attribute, CudaDevice device);

  /// The context that the framework uses, too. Retains count; release as often.
  CudaResult (*primary_context_retain)(CudaContext* context, CudaDevice device);
  CudaResult (*primary_context_release)(CudaDevice device);
  CudaResult (*context_push)(CudaContext context);
  CudaResult (*context_pop)(CudaContext* context);
  CudaResult (*context_device)(CudaDevice* device);
  CudaResult (*stream_priority_range)(int* lowest, int* highest);
  /// Swaps the calling thread's mode; see RelaxedCapture.
  CudaResult (*exchange_capture_mode)(int* mode);

  CudaResult (*stream_create)(CudaStream* stream, unsigned flags, int priority);
  CudaResult (*stream_destroy)(CudaStream stream);
  CudaResult (*stream_wait_event)(CudaStream stream, CudaEvent event, unsigned flags);
  /// The stream stands still until 32 bits at `address`, which may be pinned, fit `value`.
  CudaResult (*stream_wait_value)(CudaStream stream,
                                  CudaAddress address,
                                  std::uint32_t value,
                                  unsigned flags);
  CudaResult (*stream_query)(CudaStream stream);
  CudaResult (*stream_is_capturing)(CudaStream stream, int* status);
  CudaResult (*event_create)(CudaEvent* event, unsigned flags);
  CudaResult (*event_record)(CudaEvent event, CudaStream stream);
  CudaResult (*event_query)(CudaEvent event);
  CudaResult (*event_destroy)(CudaEvent event);
  /// `function` runs in a thread of the driver and must call no CUDA function.
  CudaResult (*launch_host_function)(CudaStream stream, CudaHostFunction function, void* argument);

  CudaResult (*copy_async)(CudaAddress to, CudaAddress from, std::size_t bytes, CudaStream stream);
  CudaResult (*fill_async)(CudaAddress to,
                           unsigned char value,
                           std::size_t bytes,
                           CudaStream stream);

  CudaResult (*module_get_function)(CudaFunction* function, CudaModule module, const char* name);
  CudaResult (*blocks_per_multiprocessor)(int* blocks,
                                          CudaFunction function,
                                          int threads,
                                          std::size_t shared_bytes);
  /// Arguments are copied before it returns.
  CudaResult (*launch)(CudaFunction function,
                       unsigned blocks_x,
                       unsigned blocks_y,
                       unsigned blocks_z,
                       unsigned threads_x,
                       unsigned threads_y,
                       unsigned threads_z,
                       unsigned shared_bytes,
                       CudaStream stream,
                       void** arguments,
                       void** extra);
  /// All blocks run at the same time, so that they may wait for one another; refused where the
  /// device has no room for so many.
  CudaResult (*launch_cooperative)(CudaFunction function,
                                   unsigned blocks_x,
                                   unsigned blocks_y,
                                   unsigned blocks_z,
                                   unsigned threads_x,
                                   unsigned threads_y,
                                   unsigned threads_z,
                                   unsigned shared_bytes,
                                   CudaStream stream,
                                   void** arguments);

  CudaResult (*allocate)(CudaAddress* address, std::size_t bytes);
  CudaResult (*release)(CudaAddress address);
  CudaResult (*host_allocate)(void** memory, std::size_t bytes, unsigned flags);
  CudaResult (*host_release)(void* memory);
  /// Page-locks memory of the process, whole pages, which may be shared with other processes.
  CudaResult (*host_register)(void* memory, std::size_t bytes, unsigned flags);
  CudaResult (*host_unregister)(void* memory);
  CudaResult (*module_load)(CudaModule* module, const void* image);
  CudaResult (*module_unload)(CudaModule module);
};

/// Loads `library` for good and looks every function up. Initialises nothing. Throws
/// Error(kEngine), with the remedy, if there is no such library or a function is missing.
CudaDriver load_cuda_driver(const std::string& library = "libcuda.so.1");

/// That of this process, loaded by the first call. Throws what load_cuda_driver does.
const CudaDriver& process_cuda_driver();

/// Throws Error(kEngine) with the driver's words unless `result` is success.
void check_cuda(const CudaDriver& driver, CudaResult result, const char* call);

/// For destructors and callbacks: logs a failure, except that the driver is gone already.
void log_cuda(const CudaDriver& driver, CudaResult result, const char* call) noexcept;

}  // namespace aiacc

/// AIACC_CUDA_CHECK(driver, event_query, event): calls, and throws what check_cuda does.
#define AIACC_CUDA_CHECK(driver, function, ...) \
  ::aiacc::check_cuda((driver), (driver).function(__VA_ARGS__), #function)

/// The same where nothing may be thrown.
#define AIACC_CUDA_LOG(driver, function, ...) \
  ::aiacc::log_cuda((driver), (driver).function(__VA_ARGS__), #function)
