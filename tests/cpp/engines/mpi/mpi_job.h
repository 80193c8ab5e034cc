#pragma once

#include <gtest/gtest.h>

#include "csrc/control/tcp/connector.h"
#include "csrc/engines/mpi/mpi_loader.h"

namespace aiacc {

/// This process as a rank of the MPI job, with its connections besides MPI. Collective.
class MpiJob {
 public:
  int rank() const { return identity_.rank; }
  int size() const { return identity_.size; }
  Connector& connector() { return connector_; }

  EngineContext context(int lanes) {
    EngineContext context;
    context.rank = rank();
    context.size = size();
    context.lanes = lanes;
    context.connector = &connector_;
    return context;
  }

 private:
  const MpiIdentity identity_ = mpi_initialize(0, 30);
  Listener listener_{"127.0.0.1"};
  Connector connector_{
      listener_, mpi_all_gather(listener_.address()), identity_.rank, {1, 2, 3}, 1, 30};
};

}  // namespace aiacc
