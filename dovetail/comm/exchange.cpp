#include "dovetail/comm/exchange.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <numeric>
#include <thread>
#include <utility>

#include "dovetail/base/error.h"
#include "dovetail/base/threads.h"
#include "dovetail/base/trace.h"

namespace dovetail::comm {
namespace {

int64_t sum(const std::vector<int64_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

std::vector<int64_t> values_of(const at::Tensor& counts) {
  const auto* data = counts.const_data_ptr<int64_t>();
  return {data, data + counts.numel()};
}

at::Tensor empty_rows(const at::Tensor& like, int64_t rows) {
  auto sizes = like.sizes().vec();
  sizes[0] = rows;
  return at::empty(sizes, like.options());
}

Exchange::Pending start_linear(Group& group, const at::Tensor& x,
                               const std::vector<int64_t>& receive,
                               const std::vector<int64_t>& send, std::vector<int64_t> sizes = {},
                               std::vector<size_t> order = {}) {
  auto rows = empty_rows(x, sum(receive));
  auto work = group.all_to_all_async(rows, x, receive, send);
  return {std::move(work), std::move(rows), std::move(sizes), std::move(order)};
}

/// Order of the pieces of a (rows, columns) table after the table is transposed.
std::vector<size_t> transposed(size_t rows, size_t columns) {
  std::vector<size_t> order;
  for (size_t c = 0; c < columns; ++c)
    for (size_t r = 0; r < rows; ++r) order.push_back(r * columns + c);
  return order;
}

/// Stride copy: splits `x` into pieces of `sizes` rows and puts them into another order.
at::Tensor reordered(const at::Tensor& x, const std::vector<int64_t>& sizes,
                     const std::vector<size_t>& order) {
  const auto pieces = x.split_with_sizes(sizes);
  std::vector<at::Tensor> result;
  result.reserve(order.size());
  for (const size_t i : order) result.push_back(pieces[i]);
  return at::cat(result);
}

std::vector<int64_t> reordered(const std::vector<int64_t>& sizes,
                               const std::vector<size_t>& order) {
  std::vector<int64_t> result;
  result.reserve(order.size());
  for (const size_t i : order) result.push_back(sizes[i]);
  return result;
}

/// Row sums of a table with `columns` columns.
std::vector<int64_t> row_sums(const std::vector<int64_t>& table, size_t columns) {
  std::vector<int64_t> sums(table.size() / columns, 0);
  for (size_t i = 0; i < table.size(); ++i) sums[i / columns] += table[i];
  return sums;
}

at::Tensor exchanged_evenly(Group& group, const at::Tensor& x) {
  const auto splits = even_splits(x.size(0), group.size());
  return start_linear(group, x, splits.receive, splits.send).wait();
}

}  // namespace

Splits even_splits(int64_t rows, int ranks) {
  user_check(rows % ranks == 0, "all_to_all: {} rows do not divide into equal parts for {} ranks",
             rows, ranks);
  const std::vector<int64_t> each(static_cast<size_t>(ranks), rows / ranks);
  return {each, each};
}

Splits exchange_sizes(Group& group, const std::vector<int64_t>& send) {
  return {send, values_of(exchanged_evenly(group, at::tensor(send, at::kLong)))};
}

NodeGroups split_by_node(Group& group, int ranks_per_node) {
  user_check(ranks_per_node >= 1 && group.size() % ranks_per_node == 0,
             "all_to_all: {} ranks do not divide into nodes of {}", group.size(), ranks_per_node);
  std::vector<std::vector<int>> inside, between(static_cast<size_t>(ranks_per_node));
  for (int r = 0; r < group.size(); ++r) {
    if (r % ranks_per_node == 0) inside.emplace_back();
    inside.back().push_back(r);
    between[static_cast<size_t>(r % ranks_per_node)].push_back(r);
  }
  auto inside_group = group.split(inside);
  return {std::move(inside_group), group.split(between), std::make_shared<Stages>()};
}

/// Thread that runs the two stages of hierarchical exchanges, one exchange after another. So all
/// ranks call the groups of the stages in the same order, while the starting thread computes.
class Stages {
 public:
  Stages() : thread_([this] { run(); }) {}
  Stages(const Stages&) = delete;
  Stages& operator=(const Stages&) = delete;
  ~Stages() {
    {
      const std::lock_guard lock(mutex_);
      ends_ = true;
    }
    changed_.notify_one();
    thread_.join();
  }

  std::future<at::Tensor> start(std::function<at::Tensor()> exchange) {
    std::packaged_task<at::Tensor()> task(std::move(exchange));
    auto result = task.get_future();
    {
      const std::lock_guard lock(mutex_);
      tasks_.push_back(std::move(task));
    }
    changed_.notify_one();
    return result;
  }

  at::Tensor wait(std::future<at::Tensor>& result) {
    const double start = now_seconds();
    result.wait();
    waited_s_ += now_seconds() - start;
    return result.get();
  }

  double waited_s() const { return waited_s_; }

 private:
  void run() {
    compute_alone();
    const at::NoGradGuard no_grad;
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return ends_ || !tasks_.empty(); });
      if (tasks_.empty()) return;
      auto task = std::move(tasks_.front());
      tasks_.pop_front();
      lock.unlock();
      task();
      task = {};  // frees the rows
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::packaged_task<at::Tensor()>> tasks_;
  bool ends_ = false;
  double waited_s_ = 0;  // used by the starting thread alone
  std::thread thread_;
};

Group::Traffic NodeGroups::traffic() const {
  Group::Traffic all = inside->all_to_all_traffic();
  const Group::Traffic far = between->all_to_all_traffic();
  all.calls += far.calls;
  all.bytes_sent += far.bytes_sent;
  all.bytes_received += far.bytes_received;
  all.waited_s = stages->waited_s();
  return all;
}

Exchange::Exchange(std::shared_ptr<Group> group, Splits splits)
    : group_(std::move(group)), splits_(std::move(splits)) {
  DOVETAIL_CHECK(splits_.send.size() == static_cast<size_t>(group_->size()) &&
                     splits_.receive.size() == splits_.send.size(),
                 "{} and {} sizes for {} ranks", splits_.send.size(), splits_.receive.size(),
                 group_->size());
}

Exchange::Exchange(NodeGroups nodes, Splits splits, std::vector<int64_t> middle)
    : nodes_(std::move(nodes)), splits_(std::move(splits)), middle_(std::move(middle)) {}

std::vector<Exchange> Exchange::hierarchical(const NodeGroups& nodes,
                                             const std::vector<std::vector<int64_t>>& sends) {
  const int64_t m = nodes.inside->size(), n = nodes.between->size(), count = std::ssize(sends);
  const at::Tensor table = at::empty({count, n, m}, at::kLong);
  auto* next = table.mutable_data_ptr<int64_t>();
  for (const auto& send : sends) {
    DOVETAIL_CHECK(std::ssize(send) == n * m, "{} sizes for {} x {} ranks", send.size(), n, m);
    next = std::ranges::copy(send, next).out;
  }
  // The counts take the same two stages as the rows.
  at::Tensor middle, receive;
  auto counts = nodes.stages->start([&] {
    middle = exchanged_evenly(*nodes.inside, table.permute({2, 1, 0}).contiguous());
    return exchanged_evenly(*nodes.between, middle.transpose(0, 1).contiguous());
  });
  receive = nodes.stages->wait(counts);
  std::vector<Exchange> made;
  for (int64_t i = 0; i < count; ++i)
    made.push_back({nodes,
                    {sends[static_cast<size_t>(i)], values_of(receive.select(2, i).contiguous())},
                    values_of(middle.select(2, i).contiguous())});
  return made;
}

Exchange Exchange::hierarchical_even(NodeGroups nodes, int64_t rows) {
  auto splits = even_splits(rows, nodes.inside->size() * nodes.between->size());
  auto middle = splits.send;
  return {std::move(nodes), std::move(splits), std::move(middle)};
}

Exchange Exchange::reversed() const {
  Exchange result = *this;
  std::swap(result.splits_.send, result.splits_.receive);
  result.reversed_ = !reversed_;
  return result;
}

int64_t Exchange::rows_sent() const { return sum(splits_.send); }
int64_t Exchange::rows_received() const { return sum(splits_.receive); }

Exchange::Pending Exchange::start(const at::Tensor& x) const {
  if (group_) return start_linear(*group_, x, splits_.receive, splits_.send);
  Exchange plan = *this;
  plan.nodes_.stages = nullptr;  // the thread must not hold itself
  if (x.is_cuda()) {  // waiting makes this thread's stream wait, which another thread's cannot
    std::promise<at::Tensor> made;
    made.set_value(plan.reversed_ ? plan.run_backward(x.detach()) : plan.run_forward(x.detach()));
    return {nodes_.stages, made.get_future()};
  }
  return {nodes_.stages, nodes_.stages->start([plan = std::move(plan), rows = x.detach()] {
            return plan.reversed_ ? plan.run_backward(rows) : plan.run_forward(rows);
          })};
}

at::Tensor Exchange::run_forward(const at::Tensor& x) const {
  const auto m = static_cast<size_t>(nodes_.inside->size()),
             n = static_cast<size_t>(nodes_.between->size());
  const auto by_place = transposed(n, m), by_node = transposed(m, n);
  const auto inside =
      start_linear(*nodes_.inside, reordered(x, splits_.send, by_place), row_sums(middle_, n),
                   row_sums(reordered(splits_.send, by_place), n))
          .wait();
  return start_linear(*nodes_.between, reordered(inside, middle_, by_node),
                      row_sums(splits_.receive, m), row_sums(reordered(middle_, by_node), m))
      .wait();
}

at::Tensor Exchange::run_backward(const at::Tensor& x) const {
  const auto m = static_cast<size_t>(nodes_.inside->size()),
             n = static_cast<size_t>(nodes_.between->size());
  const auto by_place = transposed(n, m), by_node = transposed(m, n);
  const auto of_nodes = reordered(middle_, by_node);
  const auto between =
      start_linear(*nodes_.between, x, row_sums(of_nodes, m), row_sums(splits_.send, m)).wait();
  const auto arriving = reordered(splits_.receive, by_place);
  return start_linear(*nodes_.inside, reordered(between, of_nodes, by_place), row_sums(arriving, n),
                      row_sums(middle_, n), arriving, by_node)
      .wait();
}

Exchange::Pending::Pending(std::unique_ptr<Group::Work> work, at::Tensor rows,
                           std::vector<int64_t> sizes, std::vector<size_t> order)
    : work_(std::move(work)),
      rows_(std::move(rows)),
      sizes_(std::move(sizes)),
      order_(std::move(order)) {}

Exchange::Pending::Pending(std::shared_ptr<Stages> stages, std::future<at::Tensor> staged)
    : stages_(std::move(stages)), staged_(std::move(staged)) {}

at::Tensor Exchange::Pending::wait() {
  if (stages_) return std::exchange(stages_, nullptr)->wait(staged_);
  DOVETAIL_CHECK(work_ != nullptr, "rows that are not under way");
  work_->wait();
  work_.reset();
  return order_.empty() ? std::move(rows_) : reordered(rows_, sizes_, order_);
}

}  // namespace dovetail::comm
