#include "dovetail/comm/gloo_group.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/version.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <mutex>
#include <set>
#include <thread>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <utility>

#include "dovetail/base/error.h"
#include "dovetail/comm/rank_board.h"

namespace dovetail {
namespace {

static_assert(TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR == 11,
              "compare gloo_declarations/ with this torch's ProcessGroupGloo.hpp, see the README there");

/// Longer than survivors need to hear of one another, short beside any timeout.
constexpr double kGraceSeconds = 2.0;
/// How long a rank that is done keeps its connections for those that are not.
constexpr double kLeaveSeconds = 1.0;
/// How often a waiting rank looks whether a connection has closed. The first look comes late enough that a healthy step
/// has none.
constexpr auto kFirstLook = std::chrono::milliseconds(200), kNextLooks = std::chrono::milliseconds(1000);
/// Point-to-point messages have a tag space of their own in c10d; nothing else here uses it.
constexpr int kProbeTag = 1;

/// Gloo's text without its source position and its advice.
std::string reason_of(const std::exception& error) {
  std::string text = error.what();
  text = text.substr(0, text.find('\n'));
  if (text.starts_with('[') && text.find("] ") != std::string::npos) text = text.substr(text.find("] ") + 2);
  return text.substr(0, text.find(". This is typically"));
}

bool is_timeout(const std::string& reason) {
  return reason.starts_with("Timed out") || reason.find("timed out") != std::string::npos;
}

std::string ranks_text(const std::set<int>& ranks) {
  return fmt::format("rank{} {}", ranks.size() == 1 ? "" : "s", fmt::join(ranks, ", "));
}

void check_tensor(const at::Tensor& tensor, const char* call) {
  DOVETAIL_CHECK(tensor.device().is_cpu(), "{}: a tensor on {} needs NCCL", call, tensor.device().str());
  DOVETAIL_CHECK(tensor.is_contiguous(), "{}: the tensor is not contiguous", call);
}

void check_summable(at::ScalarType dtype) {
  constexpr at::ScalarType kSummable[] = {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf,
                                          at::kLong,   at::kInt,   at::kChar,     at::kByte};
  DOVETAIL_CHECK(std::ranges::find(kSummable, dtype) != std::end(kSummable), "all_reduce: no sums of {}",
                 c10::toString(dtype));
}

/// torch's flight recorder keeps a map of process groups without a lock, which ranks that are threads of one process
/// then break (torch 2.11, FlightRecorder::recordWithResetEnabled). We never read it; whoever wants it sets the
/// variable.
void switch_off_flight_recorder() {
  static std::once_flag once;
  std::call_once(once, [] { ::setenv("TORCH_FR_BUFFER_SIZE", "0", /*overwrite=*/0); });
}

/// Gloo writes to sockets without MSG_NOSIGNAL, so a peer that died would kill this process with SIGPIPE before any
/// error came up.
void ignore_broken_pipes() {
  struct sigaction current{};
  if (::sigaction(SIGPIPE, nullptr, &current) == 0 && current.sa_handler == SIG_DFL) std::signal(SIGPIPE, SIG_IGN);
}

/// One dtype for everything that only moves bytes.
at::Tensor bytes_of(const at::Tensor& tensor) { return tensor.detach().reshape({-1}).view(at::kByte); }

struct Call {
  const char* name;
  int64_t number;  // counted from 1, alike on every rank
  std::string text() const { return fmt::format("{} (call {})", name, number); }
};

/// The connections of one rank, shared by its group and the work that it started.
class Connections {
 public:
  Connections(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
              c10::intrusive_ptr<c10d::ProcessGroupGloo::Options> options)
      : rank_(rank),
        size_(size),
        board_(store, rank, size),
        gloo_(c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, size, std::move(options))) {}

  Call next_call(const char* name) { return {name, ++calls_}; }

  /// Starts a call; any error of it ends the group.
  template <class Start>
  c10::intrusive_ptr<c10d::Work> start(const Call& call, Start&& start) {
    check_usable(call);
    try {
      auto work = start(*gloo_);
      ++running_;
      return work;
    } catch (const std::exception& error) {
      fail(call, reason_of(error));
    }
  }

  /// Gloo does not always wake a call that is in the middle of a transfer when its connection closes (about one death
  /// in a hundred left one asleep until the timeout), and not at all while the rank that left lingers. So connections
  /// and the board are looked at while waiting; every rank has a connection to every other.
  void wait(const Call& call, c10d::Work& work) {
    check_usable(call);
    for (auto slice = kFirstLook; !finished_within(call, work, slice); slice = kNextLooks)
      if (board_.judge(call.number, closed_peers()).broken) fail(call, "a connection is closed");
  }

  void finished() { --running_; }

  /// The end of this rank's part in the group. Its connections stay until the others are done as well, since a call
  /// that is over here may still be under way between them; but not long, and not when calls of its own are left
  /// unfinished.
  void close() noexcept {
    if (!gloo_) return;
    if (running_ > 0) return abort();
    board_.post_left(calls_);
    board_.silent(kLeaveSeconds);
    gloo_.reset();
  }

 private:
  void check_usable(const Call& call) const {
    if (!gloo_)
      throw CommError(fmt::format("{} on rank {}: the group failed before: {}", call.text(), rank_, failure_));
  }

  bool finished_within(const Call& call, c10d::Work& work, std::chrono::milliseconds slice) {
    try {
      return work.wait(slice);
    } catch (const std::exception& error) {
      if (!work.isCompleted()) return false;
      if (work.exception() == nullptr) return true;  // it was done just after the slice
      fail(call, reason_of(error));
    }
  }

  [[noreturn]] void fail(const Call& call, const std::string& reason) {
    const bool timeout = is_timeout(reason);
    // After a timeout Gloo has closed every connection of this rank itself, so closed ones say nothing.
    auto blamed = board_.judge(call.number, timeout ? std::set<int>{} : closed_peers()).blamed;
    board_.post_failed(blamed);
    abort();
    if (blamed.empty()) blamed = board_.silent(kGraceSeconds);
    const auto culprit =
        blamed.empty() ? std::string("the connection failed")
                       : fmt::format("{} {}", ranks_text(blamed), timeout ? "did not answer" : "stopped answering");
    failure_ = fmt::format("{}: {} (noticed by rank {} of {}: {})", call.text(), culprit, rank_, size_, reason);
    throw CommError(failure_);
  }

  std::set<int> closed_peers() {
    std::set<int> closed;
    for (int peer = 0; peer < size_; ++peer) {
      if (peer == rank_) continue;
      try {
        receive(peer);
      } catch (const std::exception&) {
        closed.insert(peer);
      }
    }
    return closed;
  }

  /// Closes every connection, which ends the calls of all ranks. c10d has no call for this (its abort() does nothing
  /// for Gloo), but a receive that times out does just that to all connections of the rank.
  void abort() noexcept {
    for (int peer = 0; peer < size_; ++peer) {
      if (peer == rank_) continue;
      try {
        receive(peer)->wait(std::chrono::milliseconds(1));
      } catch (const std::exception&) {  // it timed out, or this connection is closed already
      }
    }
    // Its destructor waits for its calls, and one of them may sleep until the timeout (see `wait`).
    std::thread([gloo = std::move(gloo_)]() mutable { gloo.reset(); }).detach();
  }

  c10::intrusive_ptr<c10d::Work> receive(int peer) {
    std::vector<at::Tensor> nothing{at::empty({1}, at::kByte)};
    return gloo_->recv(nothing, peer, kProbeTag);
  }

  int rank_, size_;
  RankBoard board_;
  c10::intrusive_ptr<c10d::ProcessGroupGloo> gloo_;  // null once the group has failed or is closed
  std::string failure_ = "it is closed";
  int64_t calls_ = 0;
  int running_ = 0;
};

class GlooWork final : public Group::Work {
 public:
  GlooWork(std::shared_ptr<Connections> connections, Call call, c10::intrusive_ptr<c10d::Work> work)
      : connections_(std::move(connections)), call_(call), work_(std::move(work)) {}

  void wait() override {
    if (!work_) return;
    connections_->wait(call_, *work_);
    work_.reset();
    connections_->finished();
  }

 private:
  std::shared_ptr<Connections> connections_;
  Call call_;
  c10::intrusive_ptr<c10d::Work> work_;  // null when waited for
};

class GlooGroup final : public Group {
 public:
  GlooGroup(std::shared_ptr<Connections> connections, int rank, int size)
      : connections_(std::move(connections)), rank_(rank), size_(size) {}
  ~GlooGroup() override { connections_->close(); }

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  void all_reduce(at::Tensor& tensor) override { all_reduce_async(tensor)->wait(); }

  std::unique_ptr<Work> all_reduce_async(at::Tensor tensor) override {
    check_tensor(tensor, "all_reduce");
    check_summable(tensor.scalar_type());
    return start("all_reduce", tensor.numel(), [&](c10d::ProcessGroupGloo& gloo) {
      std::vector<at::Tensor> tensors{tensor.detach()};
      return gloo.allreduce(tensors);
    });
  }

  void broadcast(at::Tensor& tensor, int root) override {
    check_tensor(tensor, "broadcast");
    DOVETAIL_CHECK(root >= 0 && root < size_, "broadcast: there is no rank {}", root);
    start("broadcast", tensor.numel(), [&](c10d::ProcessGroupGloo& gloo) {
      std::vector<at::Tensor> tensors{bytes_of(tensor)};
      c10d::BroadcastOptions options;
      options.rootRank = root;
      return gloo.broadcast(tensors, options);
    })->wait();
  }

  std::vector<at::Tensor> all_gather(const at::Tensor& tensor) override {
    check_tensor(tensor, "all_gather");
    std::vector<at::Tensor> results, bytes;
    for (int r = 0; r < size_; ++r) {
      results.push_back(at::empty_like(tensor.detach()));
      bytes.push_back(bytes_of(results.back()));
    }
    start("all_gather", tensor.numel(), [&](c10d::ProcessGroupGloo& gloo) {
      std::vector<at::Tensor> input{bytes_of(tensor)};
      std::vector<std::vector<at::Tensor>> outputs{bytes};
      return gloo.allgather(outputs, input);
    })->wait();
    return results;
  }

  void barrier() override {
    start("barrier", 1, [](c10d::ProcessGroupGloo& gloo) { return gloo.barrier(); })->wait();
  }

 private:
  class NoWork final : public Work {
    void wait() override {}
  };

  template <class Start>
  std::unique_ptr<Work> start(const char* name, int64_t elements, Start&& start) {
    const auto call = connections_->next_call(name);
    if (elements == 0) return std::make_unique<NoWork>();  // every rank has the same shape, so every rank skips it
    return std::make_unique<GlooWork>(connections_, call, connections_->start(call, start));
  }

  std::shared_ptr<Connections> connections_;
  int rank_, size_;
};

}  // namespace

std::shared_ptr<Group> make_gloo_group(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                       const std::string& interface, const GroupOptions& options) {
  using Gloo = c10d::ProcessGroupGloo;
  ignore_broken_pipes();
  switch_off_flight_recorder();
  try {
    auto gloo = Gloo::Options::create(std::chrono::milliseconds(static_cast<int64_t>(options.timeout_s * 1000)));
    gloo->devices.push_back(interface.empty()   ? Gloo::createDefaultDevice()
                            : interface == "lo" ? Gloo::createDeviceForHostname("127.0.0.1")
                                                : Gloo::createDeviceForInterface(interface));
    return std::make_shared<GlooGroup>(std::make_shared<Connections>(store, rank, size, std::move(gloo)), rank, size);
  } catch (const std::exception& error) {
    throw CommError(fmt::format("rank {} of {} did not connect to the others within {} s: {}", rank, size,
                                options.timeout_s, reason_of(error)));
  }
}

}  // namespace dovetail
