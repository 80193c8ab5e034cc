#pragma once

// X(member of CudaDriver, function of cuda.h, symbol of the library)
#define AIACC_CUDA_SYMBOLS(X)                                                                      \
  X(init, cuInit, "cuInit")                                                                        \
  X(driver_version, cuDriverGetVersion, "cuDriverGetVersion")                                      \
  X(error_name, cuGetErrorName, "cuGetErrorName")                                                  \
  X(error_string, cuGetErrorString, "cuGetErrorString")                                            \
  X(device_count, cuDeviceGetCount, "cuDeviceGetCount")                                            \
  X(device_get, cuDeviceGet, "cuDeviceGet")                                                        \
  X(device_pci_address, cuDeviceGetPCIBusId, "cuDeviceGetPCIBusId")                                \
  X(device_attribute, cuDeviceGetAttribute, "cuDeviceGetAttribute")                                \
  X(primary_context_retain, cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain")                  \
  X(primary_context_release, cuDevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease_v2")            \
  X(context_push, cuCtxPushCurrent, "cuCtxPushCurrent_v2")                                         \
  X(context_pop, cuCtxPopCurrent, "cuCtxPopCurrent_v2")                                            \
  X(context_device, cuCtxGetDevice, "cuCtxGetDevice")                                              \
  X(stream_priority_range, cuCtxGetStreamPriorityRange, "cuCtxGetStreamPriorityRange")             \
  X(exchange_capture_mode, cuThreadExchangeStreamCaptureMode, "cuThreadExchangeStreamCaptureMode") \
  X(stream_create, cuStreamCreateWithPriority, "cuStreamCreateWithPriority")                       \
  X(stream_destroy, cuStreamDestroy, "cuStreamDestroy_v2")                                         \
  X(stream_wait_event, cuStreamWaitEvent, "cuStreamWaitEvent")                                     \
  X(stream_wait_value, cuStreamWaitValue32, "cuStreamWaitValue32_v2")                              \
  X(stream_query, cuStreamQuery, "cuStreamQuery")                                                  \
  X(stream_is_capturing, cuStreamIsCapturing, "cuStreamIsCapturing")                               \
  X(event_create, cuEventCreate, "cuEventCreate")                                                  \
  X(event_record, cuEventRecord, "cuEventRecord")                                                  \
  X(event_query, cuEventQuery, "cuEventQuery")                                                     \
  X(event_destroy, cuEventDestroy, "cuEventDestroy_v2")                                            \
  X(launch_host_function, cuLaunchHostFunc, "cuLaunchHostFunc")                                    \
  X(copy_async, cuMemcpyAsync, "cuMemcpyAsync")                                                    \
  X(fill_async, cuMemsetD8Async, "cuMemsetD8Async")                                                \
  X(module_get_function, cuModuleGetFunction, "cuModuleGetFunction")                               \
  X(blocks_per_multiprocessor,                                                                     \
    cuOccupancyMaxActiveBlocksPerMultiprocessor,                                                   \
    "cuOccupancyMaxActiveBlocksPerMultiprocessor")                                                 \
  X(launch, cuLaunchKernel, "cuLaunchKernel")                                                      \
  X(launch_cooperative, cuLaunchCooperativeKernel, "cuLaunchCooperativeKernel")                    \
  X(allocate, cuMemAlloc, "cuMemAlloc_v2")                                                         \
  X(release, cuMemFree, "cuMemFree_v2")                                                            \
  X(host_allocate, cuMemHostAlloc, "cuMemHostAlloc")                                               \
  X(host_release, cuMemFreeHost, "cuMemFreeHost")                                                  \
  X(host_register, cuMemHostRegister, "cuMemHostRegister_v2")                                      \
  X(host_unregister, cuMemHostUnregister, "cuMemHostUnregister")                                   \
  X(module_load, cuModuleLoadData, "cuModuleLoadData")                                             \
  X(module_unload, cuModuleUnload, "cuModuleUnload")
