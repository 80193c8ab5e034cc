#include "csrc/core/negotiation/response.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace aiacc {

MemberParts parts_of(const std::vector<SharedRequest>& requests, const std::vector<int>& members) {
  MemberParts parts(members.size(), nullptr);
  for (const SharedRequest& shared : requests) {
    for (const Senders::Share& share : shared.senders->shares) {
      auto found = members.begin();
      share.ranks.for_each([&](int rank) {
        found = std::lower_bound(found, members.end(), rank);
        AIACC_CHECK(found != members.end() && *found == rank);
        parts[static_cast<std::size_t>(found - members.begin())] = &share.part;
      });
    }
  }
  return parts;
}

void add_rows(const Request& first,
              const MemberParts& parts,
              int member,
              std::vector<std::int64_t>& rows,
              std::int64_t& value) {
  if (first.kind == OpKind::kAlltoall) {
    for (const OwnPart* part : parts) {
      // Its first extent, then the splits.
      AIACC_CHECK(part != nullptr && part->numbers.size() == parts.size() + 1);
      value = std::accumulate(part->numbers.begin() + 1, part->numbers.end(), value);
      rows.push_back(part->numbers[static_cast<std::size_t>(member) + 1]);
    }
  } else if (first.kind == OpKind::kAllgather) {
    for (std::size_t i = 0; i < first.tensors.size(); ++i) {
      for (const OwnPart* part : parts) {
        AIACC_CHECK(part != nullptr);
        rows.push_back(part->numbers[i]);
      }
    }
  }
}

SharedPlacement placement_of(const MemberParts& parts, const SharedPlacement& known) {
  const auto device_of = [](const OwnPart* part) { return part == nullptr ? -1 : part->device; };
  if (std::none_of(
          parts.begin(), parts.end(), [&](const OwnPart* part) { return device_of(part) >= 0; })) {
    return nullptr;
  }
  DevicePlacement devices(parts.size());
  std::transform(parts.begin(), parts.end(), devices.begin(), device_of);
  return known != nullptr && *known == devices
             ? known
             : std::make_shared<DevicePlacement>(std::move(devices));
}

Status joined_status(const Request& request, int rank) {
  return {Code::kMismatch,
          "[join] " + operation_text(request) + ": rank " + std::to_string(rank) +
              " has joined and cannot take part (expected an allreduce with Sum, Average or Adasum "
              "over all ranks while a rank waits in join); let every rank do this before the first "
              "one joins"};
}

Status left_status(const Request& request, int rank) {
  return {
      Code::kMismatch,
      "[process set] " + operation_text(request) + ": rank " + std::to_string(rank) +
          " has left process set " + std::to_string(request.process_set) +
          " without submitting this; let all members finish the work of a set before one leaves"};
}

Status removed_set_status(const Request& request) {
  return {Code::kMismatch,
          "[process set] " + operation_text(request) + ": process set " +
              std::to_string(request.process_set) +
              " was removed before all its members had submitted this; finish the work of a set "
              "before removing it"};
}

Status existing_set_status(const Request& request, std::uint32_t existing) {
  return {Code::kInvalidArgument,
          "[process set] ranks " + shape_text(request.numbers) + " are process set " +
              std::to_string(existing) + " already (expected ranks that no set has); use that one"};
}

}  // namespace aiacc
