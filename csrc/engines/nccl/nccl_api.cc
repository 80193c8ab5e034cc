#include "csrc/engines/nccl/nccl_api.h"

#include "csrc/base/dynamic_library.h"

namespace aiacc {
namespace {

constexpr const char* kSharedName = "libnccl.so.2";

template <class F>
void bind(const DynamicLibrary& library, const char* symbol, F*& function) {
  function = library.function<F>(symbol);
}

DynamicLibrary open(const std::string& path) {
  try {
    return DynamicLibrary(DynamicLibrary::is_mapped(kSharedName) ? kSharedName : path);
  } catch (const Error& error) {
    throw Error(Code::kEngine,
                std::string(error.what()) +
                    "; install NCCL (pip install nvidia-nccl-cu13), or import the framework that "
                    "brings it before aiacc starts");
  }
}

}  // namespace

std::string nccl_version_text(int version) {
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

NcclApi load_nccl(const std::string& path) {
  DynamicLibrary library = open(path);
  NcclApi api{};
  library.function<NcclResult(int*)>("ncclGetVersion")(&api.version);
  if (api.version < kNcclLeastVersion) {
    throw Error(Code::kEngine,
                "[nccl] " + library.path() + " is version " + nccl_version_text(api.version) +
                    " (expected " + nccl_version_text(kNcclLeastVersion) +
                    " or newer); pip install -U nvidia-nccl-cu13");
  }
  bind(library, "ncclGetUniqueId", api.get_unique_id);
  bind(library, "ncclCommInitRankConfig", api.comm_init);
  bind(library, "ncclCommFinalize", api.comm_finalize);
  bind(library, "ncclCommDestroy", api.comm_destroy);
  bind(library, "ncclCommAbort", api.comm_abort);
  bind(library, "ncclCommGetAsyncError", api.comm_async_error);
  bind(library, "ncclCommRegister", api.comm_register);
  bind(library, "ncclCommDeregister", api.comm_deregister);
  bind(library, "ncclMemAlloc", api.allocate);
  bind(library, "ncclMemFree", api.release);
  bind(library, "ncclGetErrorString", api.error_string);
  bind(library, "ncclGetLastError", api.last_error);
  bind(library, "ncclGroupStart", api.group_start);
  bind(library, "ncclGroupEnd", api.group_end);
  bind(library, "ncclAllReduce", api.all_reduce);
  bind(library, "ncclBroadcast", api.broadcast);
  bind(library, "ncclAllGather", api.all_gather);
  bind(library, "ncclReduceScatter", api.reduce_scatter);
  bind(library, "ncclReduce", api.reduce);
  bind(library, "ncclSend", api.send);
  bind(library, "ncclRecv", api.receive);
  api.all_reduce_config =
      reinterpret_cast<decltype(api.all_reduce_config)>(library.find("ncclAllReduceConfig"));
  library.leak();
  return api;
}

void check_nccl(const NcclApi& api, NcclResult result, const char* call) {
  if (result == kNcclSuccess) {
    return;
  }
  const char* text = api.error_string(result);
  const char* detail = api.last_error(nullptr);
  throw Error(Code::kEngine,
              std::string("[nccl] ") + call +
                  " failed: " + (text != nullptr ? text : "error " + std::to_string(result)) +
                  (detail != nullptr && *detail != '\0' ? std::string(" (") + detail + ")" : "") +
                  "; NCCL_DEBUG=INFO says more");
}

}  // namespace aiacc
