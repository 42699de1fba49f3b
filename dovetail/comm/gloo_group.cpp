#include "dovetail/comm/gloo_group.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <mutex>
#include <numeric>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <utility>

#include "dovetail/base/error.h"
#include "dovetail/base/trace.h"
#include "dovetail/comm/gloo_connections.h"

namespace dovetail::comm {
namespace {

void check_tensor(const at::Tensor& tensor, const char* call) {
  DOVETAIL_CHECK(tensor.is_cpu() || tensor.is_cuda(), "{}: a tensor on {}", call,
                 tensor.device().str());
  DOVETAIL_CHECK(tensor.is_contiguous(), "{}: the tensor is not contiguous", call);
}

void check_summable(at::ScalarType dtype, const char* call) {
  constexpr at::ScalarType kSummable[] = {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf,
                                          at::kLong,   at::kInt,   at::kChar,     at::kByte};
  DOVETAIL_CHECK(std::ranges::find(kSummable, dtype) != std::end(kSummable), "{}: no sums of {}",
                 call, c10::toString(dtype));
}

/// Disables torch's flight recorder unless the user configures it. The recorder keeps a map of
/// process groups without a lock. Ranks that are threads of one process corrupt it (torch 2.11,
/// FlightRecorder::recordWithResetEnabled).
void switch_off_flight_recorder() {
  static std::once_flag once;
  std::call_once(once, [] { ::setenv("TORCH_FR_BUFFER_SIZE", "0", /*overwrite=*/0); });
}

/// Ignores SIGPIPE if it has its default action. Gloo writes to sockets without MSG_NOSIGNAL. A
/// dead peer would kill this process before any error is reported.
void ignore_broken_pipes() {
  struct sigaction current{};
  if (::sigaction(SIGPIPE, nullptr, &current) == 0 && current.sa_handler == SIG_DFL)
    std::signal(SIGPIPE, SIG_IGN);
}

class GlooWork final : public Group::Work {
 public:
  GlooWork(std::shared_ptr<GlooConnections> connections, GlooCall call,
           c10::intrusive_ptr<c10d::Work> work)
      : connections_(std::move(connections)), call_(std::move(call)), work_(std::move(work)) {}

  void wait() override {
    if (!work_) return;
    connections_->wait(call_, *work_);
    work_.reset();
    connections_->finished();
  }

 private:
  std::shared_ptr<GlooConnections> connections_;
  GlooCall call_;
  c10::intrusive_ptr<c10d::Work> work_;  // null after `wait`
};

class GlooGroup final : public Group {
 public:
  explicit GlooGroup(std::shared_ptr<GlooConnections> connections)
      : connections_(std::move(connections)),
        rank_(connections_->rank()),
        size_(connections_->size()) {}
  ~GlooGroup() override { connections_->close(); }

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  void all_reduce(at::Tensor& tensor) override { all_reduce_async(tensor)->wait(); }

  std::unique_ptr<Work> all_reduce_async(at::Tensor tensor) override {
    check_tensor(tensor, "all_reduce");
    check_summable(tensor.scalar_type(), "all_reduce");
    return start("all_reduce", tensor.numel(), [&](c10d::ProcessGroupGloo& gloo) {
      std::vector<at::Tensor> tensors{tensor.detach()};
      return gloo.allreduce(tensors);
    });
  }

  std::unique_ptr<Work> reduce_scatter_async(at::Tensor tensor) override {
    check_tensor(tensor, "reduce_scatter");
    check_summable(tensor.scalar_type(), "reduce_scatter");
    DOVETAIL_CHECK(tensor.numel() % size_ == 0, "reduce_scatter: {} elements for {} ranks",
                   tensor.numel(), size_);
    const auto parts = tensor.detach().view({size_, tensor.numel() / size_});
    auto all = std::make_unique<Works>();
    for (int root = 0; root < size_; ++root)
      all->works.push_back(
          start("reduce_scatter", tensor.numel(), [&](c10d::ProcessGroupGloo& gloo) {
            std::vector<at::Tensor> tensors{parts[root]};
            c10d::ReduceOptions options;
            options.rootRank = root;
            return gloo.reduce(tensors, options);
          }));
    return all;
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

  std::unique_ptr<Work> all_to_all_async(at::Tensor output, const at::Tensor& input,
                                         const std::vector<int64_t>& receive,
                                         const std::vector<int64_t>& send) override {
    check_tensor(input, "all_to_all");
    check_tensor(output, "all_to_all");
    AllToAllBytes bytes = count_all_to_all(output, input, receive, send, rank_, size_, *traffic_);
    // Not skipped if this rank has no rows: others may have some.
    return std::make_unique<TimedWork>(start("all_to_all", 1,
                                             [&](c10d::ProcessGroupGloo& gloo) {
                                               auto to = bytes_of(output), from = bytes_of(input);
                                               return gloo.alltoall_base(to, from, bytes.receive,
                                                                         bytes.send);
                                             }),
                                       traffic_);
  }

  Traffic all_to_all_traffic() const override { return *traffic_; }

  std::shared_ptr<Group> split(const std::vector<std::vector<int>>& parts) override;

  std::string gpu_library() const override { return "Gloo"; }
  Connections connections() const override {
    const GlooFamily& family = *connections_->family();
    return {.store = c10::make_intrusive<c10d::PrefixStore>(connections_->name(), family.store),
            .timeout_s = family.options.timeout_s};
  }

 private:
  class NoWork final : public Work {
    void wait() override {}
  };

  struct Works final : public Work {
    std::vector<std::unique_ptr<Work>> works;
    void wait() override {
      for (const auto& work : works) work->wait();
    }
  };

  class TimedWork final : public Work {
   public:
    TimedWork(std::unique_ptr<Work> work, std::shared_ptr<Traffic> traffic)
        : work_(std::move(work)), traffic_(std::move(traffic)) {}
    void wait() override {
      const double start = now_seconds();
      work_->wait();
      traffic_->waited_s += now_seconds() - start;
    }

   private:
    std::unique_ptr<Work> work_;
    std::shared_ptr<Traffic> traffic_;
  };

  template <class Start>
  std::unique_ptr<Work> start(const char* name, int64_t elements, Start&& start) {
    const auto call = connections_->next_call(name);
    if (elements == 0)
      return std::make_unique<NoWork>();  // every rank has the same shape, so every rank skips it
    return std::make_unique<GlooWork>(connections_, call, connections_->start(call, start));
  }

  std::shared_ptr<GlooConnections> connections_;
  int rank_, size_;
  int splits_ = 0;
  std::shared_ptr<Traffic> traffic_ = std::make_shared<Traffic>();  // shared with running calls
};

std::shared_ptr<Group> join(const std::shared_ptr<GlooFamily>& family, const std::string& name,
                            const std::vector<int>& ranks) {
  try {
    auto connections = std::make_shared<GlooConnections>(family, name, ranks);
    std::erase_if(family->groups, [](const auto& group) { return group.expired(); });
    family->groups.push_back(connections);
    return std::make_shared<GlooGroup>(std::move(connections));
  } catch (const std::exception& error) {
    throw CommError(fmt::format("rank {} of {} did not connect to the others within {} s: {}",
                                family->rank, family->size, family->options.timeout_s,
                                gloo_reason(error)));
  }
}

std::shared_ptr<Group> GlooGroup::split(const std::vector<std::vector<int>>& parts) {
  std::vector<int> seen(static_cast<size_t>(size_), 0), mine;
  size_t my_part = 0;
  for (size_t p = 0; p < parts.size(); ++p)
    for (const int r : parts[p]) {
      DOVETAIL_CHECK(r >= 0 && r < size_ && seen[static_cast<size_t>(r)]++ == 0,
                     "split: rank {} of {} is not there, or stands twice", r, size_);
      if (r == rank_) my_part = p;
    }
  DOVETAIL_CHECK(std::ranges::find(seen, 0) == seen.end(), "split: rank {} stands in no part",
                 std::ranges::find(seen, 0) - seen.begin());
  const auto name = fmt::format("{}/{}.{}", connections_->name(), ++splits_, my_part);
  mine.reserve(parts[my_part].size());
  for (const int r : parts[my_part]) mine.push_back(connections_->ranks()[static_cast<size_t>(r)]);
  if (mine.size() == 1) return make_group_of_one();
  return join(connections_->family(), name, mine);
}

}  // namespace

std::shared_ptr<Group> make_gloo_group(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                       int size, const std::string& interface,
                                       const GroupOptions& options) {
  ignore_broken_pipes();
  switch_off_flight_recorder();
  std::vector<int> ranks(static_cast<size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  const auto family = std::make_shared<GlooFamily>(GlooFamily{
      .store = store, .interface = interface, .options = options, .rank = rank, .size = size});
  return join(family, "world", ranks);
}

}  // namespace dovetail::comm
