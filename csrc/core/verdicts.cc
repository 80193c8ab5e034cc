#include "csrc/core/verdicts.h"

namespace aiacc {
namespace {

std::string quoted(const Request& request) {
  return std::string(name_of(request.kind)) + " '" + label_of(request.process_set, request.name) +
         "'";
}

}  // namespace

bool add_rows(const std::vector<Request>& requests,
              int member,
              std::vector<std::int64_t>& rows,
              std::int64_t& value) {
  const Request& first = requests.front();
  if (first.kind == OpKind::kAlltoall) {
    for (const Request& request : requests) {
      AIACC_CHECK(request.numbers.size() == requests.size());
      for (const std::int64_t split : request.numbers) {
        value += split;
      }
      if (member >= 0) {
        rows.push_back(request.numbers[static_cast<std::size_t>(member)]);
      }
    }
    return false;
  }
  if (first.kind != OpKind::kAllgather) {
    return true;
  }
  bool uniform = true;
  for (std::size_t i = 0; i < first.tensors(); ++i) {
    for (const Request& request : requests) {
      rows.push_back(request.tensor(i).shape.front());
      uniform = uniform && rows.back() == first.tensor(i).shape.front();
    }
  }
  return uniform;
}

SharedPlacement placement_of(const std::vector<std::optional<Request>>& by_member) {
  DevicePlacement devices;
  bool on_gpu = false;
  for (const auto& request : by_member) {
    devices.push_back(request ? request->device : -1);
    on_gpu = on_gpu || devices.back() >= 0;
  }
  return on_gpu ? std::make_shared<DevicePlacement>(std::move(devices)) : nullptr;
}

Status joined_status(const Request& request, int rank) {
  return {Code::kMismatch,
          "[join] " + quoted(request) + ": rank " + std::to_string(rank) +
              " has joined and cannot take part (expected an allreduce with Sum, Average or Adasum "
              "over all ranks while a rank waits in join); let every rank do this before the first "
              "one joins"};
}

Status removed_set_status(const Request& request) {
  return {Code::kMismatch,
          "[process set] " + quoted(request) + ": process set " +
              std::to_string(request.process_set) +
              " was removed before all its members had submitted this; finish the work of a set "
              "before removing it"};
}

Status existing_set_status(const Request& request, std::uint32_t existing) {
  return {Code::kInvalidArgument,
          "[process set] ranks " + shape_text(request.numbers) + " are process set " +
              std::to_string(existing) + " already (expected ranks that no set has); use that one"};
}

Status stuck_status(const std::vector<std::pair<std::string, std::vector<int>>>& names) {
  std::string list;
  for (const auto& [name, ranks] : names) {
    list += list.empty() ? "" : "; ";
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      list += (i == 0 ? "rank " : ", ") + std::to_string(ranks[i]);
    }
    list += " for '" + name + "'";
  }
  return {
      Code::kMismatch,
      "[negotiation] every rank waits for another one: " + list +
          ". An automatic name pairs the n-th unnamed call of a kind on every rank (expected the "
          "same calls everywhere); let all ranks call the same operations, or name them"};
}

}  // namespace aiacc
