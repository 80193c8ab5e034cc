#include "csrc/engines/mpi/mpi_loader.h"

#include <dlfcn.h>
#include <link.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <mutex>
#include <optional>
#include <sstream>
#include <type_traits>

#include "csrc/base/dynamic_library.h"
#include "csrc/base/error.h"
#include "csrc/engines/mpi/mpi_engine.h"
#include "csrc/engines/mpi/mpi_plugin.h"
#include "csrc/engines/mpi/mpi_request.h"
#include "csrc/engines/mpi/mpi_session.h"
#include "csrc/kernels/reduce.h"

namespace aiacc {
namespace {

constexpr double kDefaultTimeoutS = 30;

/// MPI exists once in a process and can be neither unloaded nor started twice, so this does too.
struct Mpi {
  std::mutex mutex;
  const MpiPlugin* plugin = nullptr;
  /// Why there is no plug-in, or the version of the library that it works with.
  std::string detail = "the plug-in is not loaded; run under mpirun, or set AIACC_ENGINE=mpi";
  MpiSession* session = nullptr;  ///< never destroyed: MPI may still write to what it owns
  pid_t owner = 0;
  std::atomic<bool> finishes{true};  ///< the session, when the process ends
};

Mpi& mpi() {
  static Mpi* const state = new Mpi;  // outlives every static destructor
  return *state;
}

void reduce_for_plugin(void* acc, const void* in, std::size_t count, int dtype, int op) {
  reduce(acc, in, count, static_cast<DataType>(dtype), static_cast<ReduceOp>(op));
}

/// "mpich" or "openmpi" for the text of MPI_Get_library_version. What is not Open MPI and can be
/// loaded in its place (MPICH, MVAPICH, Intel MPI) shares MPICH's binary interface.
std::string flavour_of_library(const std::string& version) {
  return version.find("Open MPI") != std::string::npos ? "openmpi" : "mpich";
}

/// What people call a flavour.
std::string name_of(const std::string& flavour) {
  return flavour == "openmpi" ? "Open MPI" : "MPICH";
}

/// Read from the file, since loading it against another flavour may fail in unclear ways.
std::string flavour_of_plugin(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    throw Error(Code::kEngine,
                "[mpi] cannot read the plug-in " + path +
                    "; build aiacc where an MPI is installed (pip install mpich)");
  }
  const std::string content{std::istreambuf_iterator<char>(file), {}};
  const std::size_t at = content.find(kMpiFlavourMark);
  if (at == std::string::npos) {
    throw Error(Code::kEngine, "[mpi] " + path + " is not an aiacc MPI plug-in; reinstall aiacc");
  }
  return content.c_str() + at + std::string(kMpiFlavourMark).size();
}

/// Path of an MPI library that this process has mapped (mpi4py does), or nothing: there must not
/// be two in one process.
std::optional<std::string> mapped_mpi() {
  std::optional<std::string> found;
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* result) {
        const std::string path = info->dlpi_name;
        const std::string name = path.substr(path.rfind('/') + 1);
        if (name.rfind("libmpi.so", 0) == 0 || name.rfind("libmpich.so", 0) == 0) {
          *static_cast<std::optional<std::string>*>(result) = path;
          return 1;
        }
        return 0;
      },
      &found);
  return found;
}

std::string version_of(const DynamicLibrary& library) {
  auto* get_version = library.function<int(char*, int*)>("MPI_Get_library_version");
  char text[8192] = "";  // MPI_MAX_LIBRARY_VERSION_STRING of every flavour
  int length = 0;
  get_version(text, &length);
  // "MPICH Version:      5.0.2\n...": the first line, its words one blank apart.
  std::istringstream words(std::string(text).substr(0, std::string(text).find('\n')));
  std::string version;
  for (std::string word; words >> word;) {
    version += (version.empty() ? "" : " ") + word;
  }
  return version;
}

struct Loaded {
  const MpiPlugin* plugin;
  std::string version;  ///< of the library
};

Loaded load(const std::string& plugin_path, const std::string& library_path) {
  const std::string wanted = flavour_of_plugin(plugin_path);
  const std::optional<std::string> mapped = mapped_mpi();
  const std::string path = mapped.value_or(library_path);
  DynamicLibrary library(path);
  const std::string version = version_of(library);
  if (flavour_of_library(version) != wanted) {
    throw Error(Code::kEngine,
                "[mpi] " + path + (mapped ? ", already loaded in this process," : "") + " is " +
                    version + " (expected " + name_of(wanted) + ", for which " + plugin_path +
                    " was built); " +
                    (mapped ? "start the job with the mpirun of the MPI that is loaded, or do not "
                              "load it"
                            : "set AIACC_MPI_LIBRARY to a library of the MPI whose mpirun is used, "
                              "or leave it unset"));
  }
  // Global, so that the plug-in resolves against it: it names no library file of its own.
  DynamicLibrary global(path, DynamicLibrary::Symbols::kGlobal);
  global.leak();
  DynamicLibrary plugin(plugin_path);
  const auto factory = plugin.function<std::remove_pointer_t<MpiPluginFactory>>(kMpiPluginSymbol);
  const MpiPlugin* functions = factory(kMpiPluginAbi, reduce_for_plugin);
  if (functions == nullptr) {
    throw Error(Code::kEngine,
                "[mpi] " + plugin_path + " belongs to another version of aiacc; reinstall aiacc");
  }
  plugin.leak();
  return {functions, version};
}

/// Whether MPI was used here, and not in a process that this one was forked from.
bool owns_session() {
  const Mpi& state = mpi();
  return state.session != nullptr && state.owner == getpid();
}

void stop_progress() {
  if (owns_session()) {
    mpi().session->stop_progress();
  }
}

void finish_at_exit() {
  stop_progress();  // also if MPI is left as it is: the thread must not outlive the libraries
  if (owns_session() && mpi().finishes) {
    mpi().session->finish();
  }
}

/// Call with the lock held.
MpiSession& session_of(Mpi& state, int network_lanes, double timeout_s) {
  if (state.plugin == nullptr) {
    throw Error(Code::kEngine, "[mpi] " + state.detail);
  }
  if (state.session == nullptr) {
    state.session = new MpiSession(*state.plugin, state.detail, network_lanes, timeout_s);
    state.owner = getpid();
    std::atexit(finish_at_exit);
    check_mpi(*state.plugin, state.plugin->before_finalize(&stop_progress), "MPI_Comm_set_attr");
  }
  return *state.session;
}

}  // namespace

std::string load_mpi(const std::string& plugin, const std::string& library) {
  Mpi& state = mpi();
  const std::lock_guard lock(state.mutex);
  if (state.plugin != nullptr) {
    return "";
  }
  try {
    const Loaded loaded = load(plugin, library);
    state.plugin = loaded.plugin;
    state.detail = loaded.version;
    return "";
  } catch (const Error& error) {
    state.detail = error.what();
    return state.detail;
  }
}

Viability mpi_viability() {
  Mpi& state = mpi();
  const std::lock_guard lock(state.mutex);
  return {state.plugin != nullptr, state.detail};
}

MpiIdentity mpi_initialize(int network_lanes, double timeout_s) {
  Mpi& state = mpi();
  const std::lock_guard lock(state.mutex);
  const MpiSession& session = session_of(state, network_lanes, timeout_s);
  return {session.world().rank(), session.world().size(), session.version()};
}

void mpi_reserve(int lanes) {
  Mpi& state = mpi();
  const std::lock_guard lock(state.mutex);
  session_of(state, 0, kDefaultTimeoutS)
      .world()
      .acquire(lanes == 0 ? 0 : MpiEngine::lanes_of_communicator(lanes));
}

void mpi_leave_unfinished() { mpi().finishes = false; }

std::vector<std::string> mpi_all_gather(const std::string& payload) {
  Mpi& state = mpi();
  const std::lock_guard lock(state.mutex);
  return session_of(state, 0, kDefaultTimeoutS).all_gather(payload);
}

std::unique_ptr<Engine> create_mpi_engine(const EngineContext& context) {
  Mpi& state = mpi();
  const std::lock_guard lock(state.mutex);
  return std::make_unique<MpiEngine>(session_of(state, 0, kDefaultTimeoutS), context);
}

std::unique_ptr<Engine> create_mpi_engine(const EngineContext& context,
                                          const std::vector<int>& ranks,
                                          std::uint32_t split_id,
                                          const Cancellation& interrupt) {
  Mpi& state = mpi();
  std::unique_lock lock(state.mutex);
  MpiSession& session = session_of(state, 0, kDefaultTimeoutS);
  lock.unlock();  // other threads may make engines among other ranks meanwhile
  return std::make_unique<MpiEngine>(session, context, ranks, split_id, interrupt);
}

}  // namespace aiacc
