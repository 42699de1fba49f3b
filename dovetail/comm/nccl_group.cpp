#include "dovetail/comm/nccl_group.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <list>
#include <set>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <utility>

#include "dovetail/base/error.h"
#include "dovetail/base/trace.h"
#include "dovetail/comm/gloo_group.h"
#include "dovetail/ops/cuda_kernels.h"

namespace dovetail::comm {
namespace {

/// Calls that this rank has started on its GPU, until the GPU has completed them.
class NcclCallsInFlight {
 public:
  explicit NcclCallsInFlight(int rank) : rank_(rank) {}

  /// Throws CommError if a call has failed.
  void check(const char* call) {
    if (failure_.empty()) {
      std::erase_if(calls_, [&](const Call& started) {
        if (!started.work->isCompleted()) return false;
        if (const auto error = started.work->exception())
          failure_ = fmt::format("{}: {}", started.name, text_of(error));
        return true;
      });
    }
    if (!failure_.empty())
      throw CommError(fmt::format("{} on rank {}: NCCL failed in {}", call, rank_, failure_));
  }

  void add(const char* name, c10::intrusive_ptr<c10d::Work> work) {
    calls_.push_back({name, std::move(work)});
  }

  /// Keeps an error that a call threw at once, and throws it as CommError.
  [[noreturn]] void fail(const char* call, const std::exception& error) {
    failure_ = fmt::format("{}: {}", call, first_line(error.what()));
    throw CommError(fmt::format("{} on rank {}: NCCL failed in {}", call, rank_, failure_));
  }

  bool failed() const { return !failure_.empty(); }

 private:
  struct Call {
    const char* name;
    c10::intrusive_ptr<c10d::Work> work;
  };

  static std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }
  static std::string text_of(const std::exception_ptr& error) {
    try {
      std::rethrow_exception(error);
    } catch (const std::exception& e) {
      return first_line(e.what());
    }
  }

  int rank_;
  std::list<Call> calls_;
  std::string failure_;
};

class NcclWork final : public Group::Work {
 public:
  NcclWork(const char* name, c10::intrusive_ptr<c10d::Work> work,
           std::shared_ptr<NcclCallsInFlight> calls)
      : name_(name), work_(std::move(work)), calls_(std::move(calls)) {}

  /// Makes torch's current stream wait for the call. The host does not wait.
  void wait() override {
    if (!work_) return;
    try {
      work_->wait();
    } catch (const std::exception& error) {
      calls_->fail(name_, error);
    }
    work_.reset();
  }

 private:
  const char* name_;
  c10::intrusive_ptr<c10d::Work> work_;  // null after `wait`
  std::shared_ptr<NcclCallsInFlight> calls_;
};

class NcclGroup final : public Group {
 public:
  NcclGroup(std::shared_ptr<Group> control, c10::intrusive_ptr<c10d::Store> store, double timeout_s)
      : control_(std::move(control)),
        store_(std::move(store)),
        timeout_s_(timeout_s),
        backend_(nccl_calls()->make_backend(store_, rank(), size(), timeout_s)),
        calls_(std::make_shared<NcclCallsInFlight>(rank())) {}

  ~NcclGroup() override {
    try {
      if (calls_->failed())
        backend_->abort();
      else
        backend_->shutdown();
    } catch (const std::exception&) {  // the error is reported by the call that failed
    }
  }

  int rank() const override { return control_->rank(); }
  int size() const override { return control_->size(); }

  void all_reduce(at::Tensor& tensor) override { all_reduce_async(tensor)->wait(); }

  std::unique_ptr<Work> all_reduce_async(at::Tensor tensor) override {
    if (!tensor.is_cuda()) return control_->all_reduce_async(std::move(tensor));
    return start("all_reduce", tensor, [&] {
      std::vector<at::Tensor> tensors{tensor.detach()};
      return backend_->allreduce(tensors);
    });
  }

  std::unique_ptr<Work> reduce_scatter_async(at::Tensor tensor) override {
    if (!tensor.is_cuda()) return control_->reduce_scatter_async(std::move(tensor));
    DOVETAIL_CHECK(tensor.numel() % size() == 0, "reduce_scatter: {} elements for {} ranks",
                   tensor.numel(), size());
    return start("reduce_scatter", tensor, [&] {
      at::Tensor all = tensor.detach().view({-1});
      const int64_t share = tensor.numel() / size();
      at::Tensor mine = all.narrow(0, rank() * share, share);  // NCCL allows this part in place
      return backend_->_reduce_scatter_base(mine, all);
    });
  }

  void broadcast(at::Tensor& tensor, int root) override {
    if (!tensor.is_cuda()) return control_->broadcast(tensor, root);
    DOVETAIL_CHECK(root >= 0 && root < size(), "broadcast: there is no rank {}", root);
    start("broadcast", tensor, [&] {
      std::vector<at::Tensor> tensors{bytes_of(tensor)};
      c10d::BroadcastOptions options;
      options.rootRank = root;
      return backend_->broadcast(tensors, options);
    })->wait();
  }

  std::vector<at::Tensor> all_gather(const at::Tensor& tensor) override {
    if (!tensor.is_cuda()) return control_->all_gather(tensor);
    std::vector<int64_t> shape{size()};
    for (const int64_t length : tensor.sizes()) shape.push_back(length);
    const at::Tensor all = at::empty(shape, tensor.options().requires_grad(false));
    start("all_gather", tensor, [&] {
      at::Tensor to = bytes_of(all), from = bytes_of(tensor);
      return backend_->_allgather_base(to, from);
    })->wait();
    return all.unbind(0);
  }

  void barrier() override {
    calls_->check("barrier");
    control_->barrier();
  }

  std::unique_ptr<Work> all_to_all_async(at::Tensor output, const at::Tensor& input,
                                         const std::vector<int64_t>& receive,
                                         const std::vector<int64_t>& send) override {
    if (!input.is_cuda()) return control_->all_to_all_async(output, input, receive, send);
    DOVETAIL_CHECK(output.device() == input.device() && output.is_contiguous(),
                   "all_to_all: rows of {} into rows of {}", input.device().str(),
                   output.device().str());
    calls_->check("all_to_all");
    AllToAllBytes bytes = count_all_to_all(output, input, receive, send, rank(), size(), traffic_);
    // A rank without rows takes part: others may have some.
    return run("all_to_all", [&] {
      at::Tensor to = bytes_of(output), from = bytes_of(input);
      return backend_->alltoall_base(to, from, bytes.receive, bytes.send);
    });
  }

  /// Waits happen on the GPU, so `waited_s` counts CPU tensors alone.
  Traffic all_to_all_traffic() const override {
    Traffic sum = control_->all_to_all_traffic();
    sum.calls += traffic_.calls;
    sum.bytes_sent += traffic_.bytes_sent;
    sum.bytes_received += traffic_.bytes_received;
    return sum;
  }

  std::string gpu_library() const override { return "NCCL"; }
  Connections connections() const override { return {.store = store_, .timeout_s = timeout_s_}; }

  std::shared_ptr<Group> split(const std::vector<std::vector<int>>& parts) override {
    calls_->check("split");
    auto part = control_->split(parts);
    ++splits_;
    if (part->size() == 1) return part;
    const auto mine =
        std::ranges::find_if(parts, [&](const auto& p) { return std::ranges::count(p, rank()); });
    const std::string name = fmt::format("{}.{}", splits_, mine - parts.begin());
    return std::make_shared<NcclGroup>(
        std::move(part), c10::make_intrusive<c10d::PrefixStore>(name, store_), timeout_s_);
  }

 private:
  class NoWork final : public Work {
    void wait() override {}
  };

  template <class Start>
  std::unique_ptr<Work> start(const char* name, const at::Tensor& tensor, Start&& begin) {
    DOVETAIL_CHECK(tensor.is_contiguous(), "{}: the tensor is not contiguous", name);
    calls_->check(name);
    if (tensor.numel() == 0) return std::make_unique<NoWork>();  // empty on each rank
    return run(name, begin);
  }

  template <class Start>
  std::unique_ptr<Work> run(const char* name, Start&& begin) {
    try {
      c10::intrusive_ptr<c10d::Work> work = begin();
      calls_->add(name, work);
      return std::make_unique<NcclWork>(name, std::move(work), calls_);
    } catch (const std::exception& error) {
      calls_->fail(name, error);
    }
  }

  std::shared_ptr<Group> control_;
  c10::intrusive_ptr<c10d::Store> store_;
  double timeout_s_;
  c10::intrusive_ptr<c10d::Backend> backend_;
  std::shared_ptr<NcclCallsInFlight> calls_;  // shared with running calls
  int splits_ = 0;
  Traffic traffic_;
};

/// Returns "host bus-ID" of this thread's current GPU.
std::string name_of_gpu() {
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  return fmt::format("{} {}", host.data(), nccl_calls()->bus_id());
}

}  // namespace

const NcclCalls* nccl_calls() {
  static const auto* const calls = ops::cuda_kernel_table<NcclCalls>(kNcclEntry);
  return calls;
}

std::shared_ptr<Group> make_nccl_group(std::shared_ptr<Group> control,
                                       c10::intrusive_ptr<c10d::Store> store, double timeout_s) {
  return std::make_shared<NcclGroup>(std::move(control), std::move(store), timeout_s);
}

std::shared_ptr<Group> on_gpus(std::shared_ptr<Group> group) {
  if (group->size() == 1) return group;
  const auto names = all_gather_bytes(*group, nccl_calls() == nullptr ? "" : name_of_gpu(), 64);
  const std::set<std::string> gpus(names.begin(), names.end());
  if (gpus.contains("") || static_cast<int>(gpus.size()) < group->size()) return group;
  const auto [store, timeout_s] = group->connections();
  return make_nccl_group(group, c10::make_intrusive<c10d::PrefixStore>("nccl", store), timeout_s);
}

}  // namespace dovetail::comm
