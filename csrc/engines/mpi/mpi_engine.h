#pragma once

#include <memory>
#include <vector>

#include "csrc/engines/cancellation.h"
#include "csrc/engines/engine.h"
#include "csrc/engines/mpi/mpi_channel.h"
#include "csrc/engines/mpi/mpi_communicator.h"
#include "csrc/engines/mpi/mpi_session.h"

namespace aiacc {

/// CPU tensors over MPI, wherever the ranks are: nonblocking collectives on a communicator of each
/// lane's own. Of reductions, the bits of a NaN may differ between ranks.
///
/// MPI sees only memory of the session, never a tensor, so that nothing writes to a tensor after an
/// aborted operation has thrown, although MPI cannot cancel. The first failure of a lane is
/// latched: all lanes throw it from then on.
class MpiEngine : public Engine {
 public:
  /// Collective, blocks. Throws Error(kInvalidArgument) if MPI numbers the ranks differently.
  MpiEngine(MpiSession& session, const EngineContext& context);
  /// Among some ranks of the job, numbered by their index in `ranks`. Collective over them, blocks;
  /// `split_id` as in MpiSession::join. Throws the status of `interrupt` once it is set.
  MpiEngine(MpiSession& session,
            const EngineContext& context,
            const std::vector<int>& ranks,
            std::uint32_t split_id,
            const Cancellation& interrupt);
  ~MpiEngine() override;

  /// Lanes of a communicator that an engine with `lanes` uses: the express lane is one.
  static int lanes_of_communicator(int lanes) { return lanes + 1; }

  const char* name() const override { return "mpi"; }
  int lanes() const override { return lanes_; }
  void all_reduce(int lane,
                  const void* send,
                  void* recv,
                  std::size_t count,
                  const Reduction& reduction) override;
  void start_all_reduce(
      int lane, int ticket, void* data, std::size_t count, const Reduction& reduction) override;
  void finish_all_reduce(int lane, int ticket) override;
  void broadcast(int lane, void* buffer, std::size_t bytes, int root) override;
  void all_gather(int lane, const void* send, void* recv, const PerRank& bytes_of) override;
  void reduce_scatter(int lane,
                      const void* send,
                      void* recv,
                      const PerRank& counts,
                      const Reduction& reduction) override;
  void all_to_all(int lane,
                  const void* send,
                  void* recv,
                  const PerRank& send_bytes,
                  const PerRank& recv_bytes) override;
  std::unique_ptr<Engine> split(const std::vector<int>& members, std::uint32_t split_id) override;
  LaneWait waits(int lane) const override;
  void abort(const Status& status) noexcept override;

 private:
  /// The engine of a communicator that `session` has handed out; `ranks` are its ranks in the job.
  MpiEngine(MpiSession& session,
            MpiCommunicator& communicator,
            std::vector<int> ranks,
            int lanes,
            double spin_us,
            const WaitCheck& interrupt);

  template <class Operation>
  void run(int lane, Operation operation);

  MpiSession& session_;
  MpiCommunicator& communicator_;
  const std::vector<int> ranks_;
  const int lanes_;
  const double spin_us_;
  Cancellation cancellation_;
  std::vector<std::unique_ptr<MpiChannel>> channels_;
};

}  // namespace aiacc
