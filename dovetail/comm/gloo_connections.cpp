#include "dovetail/comm/gloo_connections.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/version.h>

#include <algorithm>
#include <stdexcept>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <utility>

namespace dovetail::comm {
namespace {

static_assert(
    TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR == 11,
    "compare gloo_declarations/ with this torch's ProcessGroupGloo.hpp, see the README there");

/// Time for survivors to post their notes. Longer than they need, short compared with any timeout.
constexpr double kGraceSeconds = 2.0;
/// Time that a rank which is done keeps its connections for ranks which are not.
constexpr double kLeaveSeconds = 1.0;
/// Interval at which a waiting rank checks for closed connections. A healthy step ends before the
/// first check. The later ones are frequent enough to find a dead rank within a second.
constexpr auto kFirstLook = std::chrono::milliseconds(200),
               kNextLooks = std::chrono::milliseconds(400);
/// Time between Gloo closing connections and reporting the reason.
constexpr auto kSettle = std::chrono::milliseconds(20);
/// Tag of the probes. c10d has a separate tag space for point-to-point messages, which nothing else
/// here uses.
constexpr int kProbeTag = 1;

bool is_timeout(const std::string& reason) {
  return reason.starts_with("Timed out") || reason.find("timed out") != std::string::npos;
}

std::string ranks_text(const std::set<int>& ranks) {
  return fmt::format("rank{} {}", ranks.size() == 1 ? "" : "s", fmt::join(ranks, ", "));
}

c10::intrusive_ptr<c10d::ProcessGroupGloo::Options> gloo_options(const std::string& interface,
                                                                 double timeout_s) {
  using Gloo = c10d::ProcessGroupGloo;
  auto options =
      Gloo::Options::create(std::chrono::milliseconds(static_cast<int64_t>(timeout_s * 1000)));
  options->devices.push_back(interface.empty()   ? Gloo::createDefaultDevice()
                             : interface == "lo" ? Gloo::createDeviceForHostname("127.0.0.1")
                                                 : Gloo::createDeviceForInterface(interface));
  return options;
}

}  // namespace

std::string gloo_reason(const std::exception& error) {
  std::string text = error.what();
  text = text.substr(0, text.find('\n'));
  if (text.starts_with('[') && text.find("] ") != std::string::npos)
    text = text.substr(text.find("] ") + 2);
  return text.substr(0, text.find(". This is typically"));
}

void GlooFamily::abort() noexcept {
  for (const auto& group : groups)
    if (const auto connections = group.lock()) connections->abort();
}

void GlooFamily::keep_failure(const std::string& failure) {
  for (const auto& group : groups)
    if (const auto connections = group.lock()) connections->keep_failure(failure);
}

std::string GlooCall::text() const { return fmt::format("{} (call {}){}", name, number, among); }

GlooConnections::GlooConnections(std::shared_ptr<GlooFamily> family, std::string name,
                                 std::vector<int> ranks)
    : family_(std::move(family)),
      name_(std::move(name)),
      ranks_(std::move(ranks)),
      among_(size() == family_->size ? ""
                                     : fmt::format(" among ranks {}", fmt::join(ranks_, ", "))),
      board_(family_->store, name_, family_->rank, ranks_),
      gloo_(c10::make_intrusive<c10d::ProcessGroupGloo>(
          c10::make_intrusive<c10d::PrefixStore>(name_, family_->store), rank(), size(),
          gloo_options(family_->interface, family_->options.timeout_s))) {}

int GlooConnections::rank() const {
  return static_cast<int>(std::ranges::find(ranks_, family_->rank) - ranks_.begin());
}

void GlooConnections::wait(const GlooCall& call, c10d::Work& work) {
  check_usable(call);
  for (auto slice = kFirstLook; !finished_within(call, work, slice); slice = kNextLooks) {
    const auto closed = closed_peers();
    // If this rank itself has just timed out, Gloo closed its connections.
    if (!closed.empty() && finished_within(call, work, kSettle)) return;
    if (board_.agree_on_outcome(call.number, closed).broken)
      fail(call, std::runtime_error("a connection is closed"));
  }
}

void GlooConnections::close() noexcept {
  if (!gloo_) return;
  if (running_ > 0) return abort();
  board_.post_left(calls_);
  board_.silent(kLeaveSeconds);
  gloo_.reset();
}

void GlooConnections::check_usable(const GlooCall& call) const {
  if (!gloo_)
    throw CommError(fmt::format("{} on rank {}: the group failed before: {}", call.text(),
                                family_->rank, failure_));
}

bool GlooConnections::finished_within(const GlooCall& call, c10d::Work& work,
                                      std::chrono::milliseconds slice) {
  try {
    return work.wait(slice);
  } catch (const std::exception& error) {
    if (!work.isCompleted()) return false;
    if (work.exception() == nullptr) return true;  // it finished just after the slice
    fail(call, error);
  }
}

void GlooConnections::fail(const GlooCall& call, const std::exception& error) {
  const auto reason = gloo_reason(error);
  const bool timeout = is_timeout(reason);
  // After a timeout Gloo has closed every connection of this rank itself. So closed connections
  // carry no information.
  auto blamed =
      board_.agree_on_outcome(call.number, timeout ? std::set<int>{} : closed_peers()).blamed;
  board_.post_failed(blamed);
  family_->abort();
  if (blamed.empty()) blamed = board_.silent(kGraceSeconds);
  const auto culprit = blamed.empty()
                           ? std::string("the connection failed")
                           : fmt::format("{} {}", ranks_text(blamed),
                                         timeout ? "did not answer" : "stopped answering");
  const auto failure = fmt::format("{}: {} (noticed by rank {} of {}: {})", call.text(), culprit,
                                   family_->rank, family_->size, reason);
  family_->keep_failure(failure);
  throw CommError(failure);
}

std::set<int> GlooConnections::closed_peers() {
  std::set<int> closed;
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank()) continue;
    try {
      receive(peer);
    } catch (const std::exception&) {
      closed.insert(ranks_[static_cast<size_t>(peer)]);
    }
  }
  return closed;
}

/// c10d has no call for this: its abort() does nothing for Gloo. But a receive that times out
/// closes all connections of the rank.
void GlooConnections::abort() noexcept {
  if (!gloo_) return;
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank()) continue;
    try {
      receive(peer)->wait(std::chrono::milliseconds(1));
    } catch (const std::exception&) {  // timed out, or this connection is closed already
    }
  }
  // The destructor waits for its calls, and one of them may sleep until the timeout (see `wait`).
  std::thread([gloo = std::move(gloo_)]() mutable { gloo.reset(); }).detach();
}

c10::intrusive_ptr<c10d::Work> GlooConnections::receive(int peer) {
  std::vector<at::Tensor> nothing{at::empty({1}, at::kByte)};
  return gloo_->recv(nothing, peer, kProbeTag);
}

}  // namespace dovetail::comm
