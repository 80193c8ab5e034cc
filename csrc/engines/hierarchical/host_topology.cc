#include "csrc/engines/hierarchical/host_topology.h"

#include <algorithm>
#include <map>
#include <string>

#include "csrc/base/error.h"

namespace aiacc {

HostTopology::HostTopology(const std::vector<int>& host_of) {
  AIACC_CHECK(!host_of.empty());
  std::map<int, int> numbers;
  for (std::size_t rank = 0; rank < host_of.size(); ++rank) {
    const int host = numbers.try_emplace(host_of[rank], hosts()).first->second;
    if (host == hosts()) {
      ranks_on_.emplace_back();
    }
    std::vector<int>& ranks = ranks_on_[static_cast<std::size_t>(host)];
    host_.push_back(host);
    local_.push_back(static_cast<int>(ranks.size()));
    ranks.push_back(static_cast<int>(rank));
  }
  const auto smallest =
      std::min_element(ranks_on_.begin(), ranks_on_.end(), [](const auto& a, const auto& b) {
        return a.size() < b.size();
      });
  columns_ = static_cast<int>(smallest->size());
}

std::vector<int> HostTopology::column(int number) const {
  AIACC_CHECK(number >= 0 && number < columns_);
  std::vector<int> ranks;
  ranks.reserve(ranks_on_.size());
  for (const std::vector<int>& on_host : ranks_on_) {
    ranks.push_back(on_host[static_cast<std::size_t>(number)]);
  }
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

int HostTopology::index_in_column(int number, int host) const {
  const std::vector<int> ranks = column(number);
  const int rank = ranks_on(host)[static_cast<std::size_t>(number)];
  return static_cast<int>(std::lower_bound(ranks.begin(), ranks.end(), rank) - ranks.begin());
}

void check_hosts(const EngineContext& context) {
  if (context.host_of.size() != static_cast<std::size_t>(context.size)) {
    throw Error(Code::kInvalidArgument,
                "[hierarchical] the hosts of " + std::to_string(context.host_of.size()) +
                    " ranks are known (expected " + std::to_string(context.size) +
                    "); choose an engine that is not hierarchical");
  }
}

}  // namespace aiacc
