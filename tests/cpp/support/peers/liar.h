#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "csrc/core/negotiation/message.h"
#include "tests/cpp/support/mutator.h"
#include "tests/cpp/support/requests.h"

namespace aiacc {

/// A rank that sends what no rank should, most of it well formed. Same seed, same lies.
class Liar {
 public:
  explicit Liar(std::uint32_t seed) : random_(seed), mutator_(seed) {}

  std::size_t below(std::size_t limit) { return limit == 0 ? 0 : random_() % limit; }
  bool chance(std::size_t one_in) { return below(one_in) == 0; }

  /// Makes a lie of the share that `rank` of `size` would send.
  Bytes lie(const Bytes& share, int rank, int size) {
    if (chance(3)) {
      return mutator_.damage(share);
    }
    RoundMessage message = decoded(share);
    apart_ = false;
    for (std::size_t left = 1 + below(3); left > 0 && !apart_; --left) {
      change(message, rank, size);
    }
    return encoded(message);
  }

  /// Small, negative or at the edge of some type or limit.
  std::int64_t number() {
    static constexpr std::int64_t kNumbers[] = {0,
                                                1,
                                                2,
                                                3,
                                                -1,
                                                1 << 16,
                                                std::int64_t{1} << 31,
                                                std::int64_t{1} << 32,
                                                std::int64_t{1} << 46,
                                                (std::int64_t{1} << 61) + 1,
                                                std::int64_t{1} << 62,
                                                std::numeric_limits<std::int64_t>::max(),
                                                std::numeric_limits<std::int64_t>::min()};
    return kNumbers[below(std::size(kNumbers))];
  }

  void change(Request& request) {
    switch (below(12)) {
      case 0:
        request.kind = static_cast<OpKind>(below(kOpKinds));
        break;
      case 1:
        request.tensors[0].dtype = static_cast<DataType>(below(kDataTypes));
        break;
      case 2:
        request.op = static_cast<ReduceOp>(below(6));
        break;
      case 3:
        request.root = static_cast<std::int32_t>(number());
        break;
      case 4:
        request.device = static_cast<std::int32_t>(below(3)) - 1;
        break;
      case 5:
        request.process_set = static_cast<std::uint32_t>(number());
        break;
      case 6:
        change(request.tensors[0].shape);
        break;
      case 7:
        request.tensors.resize(1 + below(4));
        break;
      case 8:
        change(request.tensors[below(request.tensors.size())].shape);
        break;
      case 9:
        change(request.numbers);
        break;
      case 10:
        (chance(2) ? request.prescale : request.postscale) =
            std::numeric_limits<double>::quiet_NaN();
        break;
      default:
        request.cacheable = !request.cacheable;
    }
    for (std::size_t i = 0; has_rows(request.kind) && i < request.tensors.size(); ++i) {
      TensorSpec& tensor = request.tensors[i];
      tensor.shape.resize(std::max<std::size_t>(tensor.shape.size(), 1), number());
    }
  }

 private:
  void change(std::vector<std::int64_t>& numbers) {
    if (numbers.empty() || chance(4)) {
      numbers.resize(below(5), number());
    } else if (chance(4)) {
      numbers.clear();
    } else {
      numbers[below(numbers.size())] = number();
    }
  }

  void change(RoundMessage& message, int rank, int size) {
    switch (below(8)) {
      case 0:
        message.flags ^= 1U << below(5);
        return;
      case 1:
        if (message.ready.words() > 0) {
          message.ready.word(below(message.ready.words())) ^= std::uint64_t{1} << below(64);
        }
        return;
      case 2:
        message.answers.ranks.add(static_cast<int>(below(static_cast<std::size_t>(size) + 1)));
        message.answers.names.push_back({"allreduce.x", 1, {}, false, RankSet(rank)});
        return;
      case 3:
        message.proposal = Proposal{rank, {1, 1 + below(1 << 20), 1}};
        return;
      case 4:
        message.cut = std::string(1, static_cast<char>(below(3))) + std::string(below(3), 'x');
        return;
      case 5:
        if (!message.requests.empty()) {
          message.requests.pop_back();
        }
        return;
      default:
        change_requests(message, rank, size);
    }
  }

  void change_requests(RoundMessage& message, int rank, int size) {
    if (!message.texts.empty() && chance(2)) {
      SharedRequest& text = message.texts[below(message.texts.size())];
      text = text_from(rank, changed(*text.request));
      return;
    }
    if (message.requests.empty() || chance(4)) {
      Request request;
      request.name = "new";
      request.tensors[0].shape = {2};
      request = changed(request);
      message.requests.emplace_back(request, rank, 0);
      message.texts.push_back(text_from(rank, request));
      return;
    }
    SharedRequest& shared = message.requests[below(message.requests.size())];
    const int sender =
        chance(6) ? static_cast<int>(below(static_cast<std::size_t>(size) + 1)) : rank;
    if (chance(3)) {
      Senders senders = *shared.senders;
      change(senders.shares[0].part.numbers);
      senders.shares[0].ranks = RankSet(sender);
      shared.senders = std::make_shared<Senders>(senders);
    } else if (shared.request != nullptr) {
      shared = SharedRequest(changed(shared.of(shared.senders->first())),
                             sender,
                             static_cast<std::uint32_t>(below(4)));
    } else {
      shared.key[1 + below(shared.key.size() - 1)] ^= static_cast<char>(1U << below(8));
    }
    apart_ = true;
  }

  Request changed(Request request) {
    if (!chance(6)) {
      change(request);
    }
    return request;
  }

  std::mt19937 random_;
  Mutator mutator_;
  bool apart_ = false;  ///< what was changed last cannot be put together again
};

}  // namespace aiacc
