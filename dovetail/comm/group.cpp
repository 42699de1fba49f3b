#include "dovetail/comm/group.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <utility>

#include "dovetail/base/error.h"
#include "dovetail/comm/gloo_group.h"

namespace dovetail::comm {

void check_all_to_all(const at::Tensor& output, const at::Tensor& input,
                      const std::vector<int64_t>& receive, const std::vector<int64_t>& send,
                      int size) {
  const auto check_rows = [&](const at::Tensor& tensor, const std::vector<int64_t>& rows,
                              const char* what) {
    DOVETAIL_CHECK(rows.size() == static_cast<size_t>(size),
                   "all_to_all: {} counts of rows to {} for {} ranks", rows.size(), what, size);
    int64_t sum = 0;
    for (const int64_t count : rows) {
      DOVETAIL_CHECK(count >= 0, "all_to_all: {} rows to {}", count, what);
      sum += count;
    }
    DOVETAIL_CHECK(tensor.dim() >= 1 && tensor.size(0) == sum,
                   "all_to_all: a tensor of {} rows for {} to {}",
                   tensor.dim() == 0 ? 0 : tensor.size(0), sum, what);
  };
  check_rows(input, send, "send");
  check_rows(output, receive, "receive");
  DOVETAIL_CHECK(input.scalar_type() == output.scalar_type() &&
                     input.sizes().slice(1) == output.sizes().slice(1),
                 "all_to_all: rows of {} {} into rows of {} {}", c10::toString(input.scalar_type()),
                 fmt::join(input.sizes().slice(1), " x "), c10::toString(output.scalar_type()),
                 fmt::join(output.sizes().slice(1), " x "));
}

AllToAllBytes count_all_to_all(const at::Tensor& output, const at::Tensor& input,
                               const std::vector<int64_t>& receive,
                               const std::vector<int64_t>& send, int rank, int size,
                               Group::Traffic& traffic) {
  check_all_to_all(output, input, receive, send, size);
  const auto row_bytes = c10::multiply_integers(input.sizes().slice(1)) * input.element_size();
  AllToAllBytes bytes{.receive = receive, .send = send};
  for (auto* counts : {&bytes.receive, &bytes.send})
    for (int64_t& count : *counts) count *= row_bytes;
  ++traffic.calls;
  for (int r = 0; r < size; ++r) {
    if (r == rank) continue;
    traffic.bytes_sent += bytes.send[static_cast<size_t>(r)];
    traffic.bytes_received += bytes.receive[static_cast<size_t>(r)];
  }
  return bytes;
}

at::Tensor bytes_of(const at::Tensor& tensor) {
  return tensor.detach().reshape({-1}).view(at::kByte);
}

namespace {

class GroupOfOne final : public Group {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  void all_reduce(at::Tensor&) override {}
  std::unique_ptr<Work> all_reduce_async(at::Tensor) override { return std::make_unique<NoWork>(); }
  std::unique_ptr<Work> reduce_scatter_async(at::Tensor) override {
    return std::make_unique<NoWork>();
  }
  void broadcast(at::Tensor&, int root) override {
    DOVETAIL_CHECK(root == 0, "broadcast: there is no rank {}", root);
  }
  std::vector<at::Tensor> all_gather(const at::Tensor& tensor) override {
    return {tensor.detach().clone()};
  }
  void barrier() override {}
  std::unique_ptr<Work> all_to_all_async(at::Tensor output, const at::Tensor& input,
                                         const std::vector<int64_t>& receive,
                                         const std::vector<int64_t>& send) override {
    check_all_to_all(output, input, receive, send, 1);
    output.detach().copy_(input.detach());
    ++calls_;
    return std::make_unique<NoWork>();
  }
  Traffic all_to_all_traffic() const override { return {.calls = calls_}; }
  std::shared_ptr<Group> split(const std::vector<std::vector<int>>& parts) override {
    DOVETAIL_CHECK(parts == std::vector<std::vector<int>>{{0}},
                   "split: a group of one rank has one part");
    return std::make_shared<GroupOfOne>();
  }
  std::string gpu_library() const override { return "none"; }
  Connections connections() const override { return {}; }

 private:
  int64_t calls_ = 0;
  class NoWork final : public Work {
    void wait() override {}
  };
};

constexpr int64_t kMaxRanks = 1 << 20;
constexpr const char* kStartedBy =
    "torchrun sets it: start the job with `dovetail launch -n <ranks> ...`";

std::string required(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0')
    throw UserError(
        fmt::format(
            "RANK or WORLD_SIZE is set, so this is a job of several ranks, but {} is not set",
            name),
        kStartedBy);
  return value;
}

int64_t integer(const char* name, const std::string& text, int64_t low, int64_t high) {
  int64_t value = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), value);
  if (parsed.ec != std::errc() || parsed.ptr != text.data() + text.size() || value < low ||
      value > high)
    throw UserError(
        fmt::format("{} is '{}', not a whole number from {} to {}", name, text, low, high),
        kStartedBy);
  return value;
}

std::string optional(const char* name, const char* fallback) {
  const char* value = std::getenv(name);
  return value == nullptr ? fallback : value;
}

void check_options(const GroupOptions& options) {
  user_check(options.timeout_s > 0 && options.timeout_s < 1e6,
             "timeout_s is {}, not a positive number of seconds", options.timeout_s);
}

int64_t restart_count() {
  return integer("TORCHELASTIC_RESTART_COUNT", optional("TORCHELASTIC_RESTART_COUNT", "0"), 0,
                 1 << 30);
}

c10::intrusive_ptr<c10d::Store> connect_store(int rank, int size, double timeout_s) {
  const auto address = required("MASTER_ADDR");
  const auto port = integer("MASTER_PORT", required("MASTER_PORT"), 1, 65535);
  const int64_t restart = restart_count();
  // Under torchrun the agent hosts the store on this port, so rank 0 would find the port taken.
  const bool agent_hosts = optional("TORCHELASTIC_USE_AGENT_STORE", "False") == "True";
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(port);
  options.isServer = rank == 0 && !agent_hosts;
  options.numWorkers = static_cast<size_t>(size);
  options.waitWorkers = false;
  options.timeout = std::chrono::milliseconds(static_cast<int64_t>(timeout_s * 1000));
  try {
    // A restarted job uses another prefix. Otherwise it would find the addresses of the dead job.
    return c10::make_intrusive<c10d::PrefixStore>(
        fmt::format("dovetail/{}", restart), c10::make_intrusive<c10d::TCPStore>(address, options));
  } catch (const std::exception& error) {
    const std::string reason = error.what();
    if (reason.find("EADDRINUSE") != std::string::npos)
      throw UserError(
          fmt::format("MASTER_PORT = {} is in use by another program on this machine", port),
          "set MASTER_PORT to a free port, the same for all ranks");
    throw CommError(fmt::format(
        "rank {} of {} found no store at MASTER_ADDR:MASTER_PORT = {}:{} within {} s: {}", rank,
        size, address, port, timeout_s, reason.substr(0, reason.find('\n'))));
  }
}

}  // namespace

std::shared_ptr<Group> make_group_of_one() { return std::make_shared<GroupOfOne>(); }

std::shared_ptr<Group> world_from_environment(const GroupOptions& options) {
  const auto given_rank = optional("RANK", ""), given_size = optional("WORLD_SIZE", "");
  const int64_t size = given_size.empty() ? 1 : integer("WORLD_SIZE", given_size, 1, kMaxRanks);
  if (given_rank.empty() && size == 1) return std::make_shared<GroupOfOne>();
  const auto rank = static_cast<int>(integer("RANK", required("RANK"), 0, kMaxRanks));
  const auto world_size =
      static_cast<int>(integer("WORLD_SIZE", required("WORLD_SIZE"), 1, kMaxRanks));
  if (rank >= world_size)
    throw UserError(fmt::format("RANK is {}, but WORLD_SIZE is {}", rank, world_size), kStartedBy);
  if (world_size == 1) return std::make_shared<GroupOfOne>();
  check_options(options);
  return group_over_store(connect_store(rank, world_size, options.timeout_s), rank, world_size,
                          options);
}

std::shared_ptr<Group> group_over_store(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                        int size, const GroupOptions& options) {
  check_options(options);
  if (size == 1) return std::make_shared<GroupOfOne>();
  auto interface = optional("GLOO_SOCKET_IFNAME", "");
  const std::string world = optional("WORLD_SIZE", "");
  if (interface.empty() && !world.empty() && optional("LOCAL_WORLD_SIZE", "") == world)
    interface = "lo";
  return make_gloo_group(store, rank, size, interface, options);
}

Neighbours neighbours_of(const Group& group) {
  const auto size = optional("LOCAL_WORLD_SIZE", "");
  if (size.empty()) return {.rank = group.rank(), .size = group.size()};
  const auto count = integer("LOCAL_WORLD_SIZE", size, 1, kMaxRanks);
  return {
      .rank = static_cast<int>(integer("LOCAL_RANK", optional("LOCAL_RANK", "0"), 0, count - 1)),
      .size = static_cast<int>(count)};
}

bool restarted_by_torchrun() { return restart_count() > 0; }

std::vector<std::shared_ptr<Group>> local_groups(int size, const GroupOptions& options) {
  DOVETAIL_CHECK(size >= 1, "a group of {} ranks", size);
  check_options(options);
  if (size == 1) return {std::make_shared<GroupOfOne>()};
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::shared_ptr<Group>> groups(static_cast<size_t>(size));
  std::vector<std::exception_ptr> errors(groups.size());
  std::vector<std::thread> threads;
  for (size_t r = 0; r < groups.size(); ++r)
    threads.emplace_back([&, r] {
      try {
        groups[r] = make_gloo_group(store, static_cast<int>(r), size, "lo", options);
      } catch (...) {
        errors[r] = std::current_exception();
      }
    });
  for (auto& thread : threads) thread.join();
  for (const auto& error : errors)
    if (error) std::rethrow_exception(error);
  return groups;
}

namespace {

/// Gathers every rank's piece, padded with zeros to `size` bytes.
std::vector<std::string> all_gather_padded(Group& group, std::string_view piece, size_t size) {
  const at::Tensor mine = at::zeros({static_cast<int64_t>(size)}, at::kByte);
  std::memcpy(mine.mutable_data_ptr(), piece.data(), piece.size());
  std::vector<std::string> all;
  for (const at::Tensor& tensor : group.all_gather(mine))
    all.emplace_back(static_cast<const char*>(tensor.const_data_ptr()), size);
  return all;
}

}  // namespace

std::vector<std::string> all_gather_bytes(Group& group, std::string_view bytes, int64_t expected) {
  const int64_t length = std::ssize(bytes);
  std::string message(reinterpret_cast<const char*>(&length), sizeof(length));
  const size_t first = message.size() + static_cast<size_t>(expected);
  message += bytes;
  std::vector<std::string> all =
      all_gather_padded(group, std::string_view(message).substr(0, first), first);
  std::vector<size_t> sizes;
  for (const std::string& begin : all) {
    int64_t of_rank = 0;
    std::memcpy(&of_rank, begin.data(), sizeof(of_rank));
    sizes.push_back(sizeof(of_rank) + static_cast<size_t>(of_rank));
  }
  const size_t longest = *std::ranges::max_element(sizes);
  if (longest > first) {
    const auto rest = std::string_view(message).substr(std::min(first, message.size()));
    const auto ends = all_gather_padded(group, rest, longest - first);
    for (size_t r = 0; r < all.size(); ++r) all[r] += ends[r];
  }
  for (size_t r = 0; r < all.size(); ++r)
    all[r] = all[r].substr(sizeof(length), sizes[r] - sizeof(length));
  return all;
}

void agree(Group& group, const std::string& what, const std::string& error_message) {
  const auto messages = all_gather_bytes(group, error_message);
  std::vector<std::string> errors;
  for (size_t r = 0; r < messages.size(); ++r)
    if (!messages[r].empty()) errors.push_back(fmt::format("rank {}: {}", r, messages[r]));
  if (!errors.empty()) throw CommError(fmt::format("{}: {}", what, fmt::join(errors, "; ")));
}

}  // namespace dovetail::comm
