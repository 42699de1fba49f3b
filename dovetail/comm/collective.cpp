#include "dovetail/comm/collective.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>
#include <future>
#include <iterator>
#include <nlohmann/json.hpp>

namespace dovetail::comm {
namespace {

std::exception_ptr run_catching(const std::function<void()>& work) {
  try {
    work();
  } catch (...) {
    return std::current_exception();
  }
  return nullptr;
}

std::string message_of(const std::exception_ptr& error) {
  if (!error) return {};
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& e) {
    return *e.what() == '\0' ? "failed" : e.what();
  }
}

}  // namespace

std::vector<double> sum_over_ranks(Group& group, const std::vector<double>& values) {
  if (group.size() == 1) return values;
  at::Tensor tensor = at::tensor(values, at::kDouble);
  group.all_reduce(tensor);
  const double* data = tensor.const_data_ptr<double>();
  return {data, data + values.size()};
}

nlohmann::json broadcast_json(Group& group, const nlohmann::json& value) {
  if (group.size() == 1) return value;
  std::string text = group.rank() == 0 ? value.dump() : std::string();
  at::Tensor size = at::tensor({static_cast<int64_t>(text.size())}, at::kLong);
  group.broadcast(size, 0);
  at::Tensor bytes = at::empty({size.item<int64_t>()}, at::kByte);
  if (group.rank() == 0) std::memcpy(bytes.data_ptr(), text.data(), text.size());
  group.broadcast(bytes, 0);
  const auto* data = static_cast<const char*>(bytes.const_data_ptr());
  return nlohmann::json::parse(data, data + bytes.numel());
}

std::vector<nlohmann::ordered_json> gather_json(Group& group, const nlohmann::ordered_json& value) {
  const std::string text = value.dump();
  const std::vector<at::Tensor> sizes = group.all_gather(at::tensor({std::ssize(text)}, at::kLong));
  int64_t most = 0;
  for (const at::Tensor& size : sizes) most = std::max(most, size.item<int64_t>());
  at::Tensor bytes = at::zeros({most}, at::kByte);
  std::memcpy(bytes.data_ptr(), text.data(), text.size());
  const std::vector<at::Tensor> all = group.all_gather(bytes);
  std::vector<nlohmann::ordered_json> values;
  for (size_t i = 0; i < all.size(); ++i) {
    const auto* data = static_cast<const char*>(all[i].const_data_ptr());
    values.push_back(nlohmann::ordered_json::parse(data, data + sizes[i].item<int64_t>()));
  }
  return values;
}

void on_all_ranks(Group& group, const std::string& what, const std::function<void()>& work) {
  if (group.size() == 1) {
    if (work) work();
    return;
  }
  std::future<std::exception_ptr> running;
  if (work) {
    running = std::async(std::launch::async, [&work, threads = at::get_num_threads()] {
      at::set_num_threads(threads);
      return run_catching(work);
    });
  }
  for (bool done = false; !done;) {
    const bool busy =
        running.valid() && running.wait_for(std::chrono::seconds(1)) != std::future_status::ready;
    at::Tensor busy_ranks = at::full({1}, busy ? 1.0 : 0.0, at::kDouble);
    group.all_reduce(busy_ranks);
    done = busy_ranks.item<double>() == 0;
  }
  const std::exception_ptr error = running.valid() ? running.get() : nullptr;
  try {
    agree(group, what, message_of(error));
  } catch (const CommError&) {
    if (error) std::rethrow_exception(error);
    throw;
  }
}

void on_rank_zero(Group& group, const std::string& what, const std::function<void()>& work) {
  on_all_ranks(group, what, group.rank() == 0 ? work : nullptr);
}

}  // namespace dovetail::comm
