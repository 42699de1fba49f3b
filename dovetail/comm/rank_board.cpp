#include "dovetail/comm/rank_board.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <chrono>
#include <exception>
#include <sstream>
#include <thread>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <utility>

namespace dovetail {
namespace {

constexpr const char* kCountKey = "notes";

std::string key_of(int rank) { return fmt::format("note/{}", rank); }

}  // namespace

RankBoard::RankBoard(c10::intrusive_ptr<c10d::Store> store, int rank, int size)
    : store_(std::move(store)), rank_(rank), size_(size) {}
RankBoard::~RankBoard() = default;

void RankBoard::post(const std::string& note) {
  try {
    store_->set(key_of(rank_), std::vector<uint8_t>(note.begin(), note.end()));
    store_->add(kCountKey, 1);       // answered after `set` is done, so the note is there before any connection closes
  } catch (const std::exception&) {  // the store is gone: there is nobody to tell
  }
}

void RankBoard::post_left(int64_t calls) { post(fmt::format("left {}", calls)); }
void RankBoard::post_failed(const std::set<int>& blamed) { post(fmt::format("failed {}", fmt::join(blamed, " "))); }

RankBoard::Note RankBoard::note_of(int rank) const {
  if (!store_->check({key_of(rank)})) return {};
  const auto bytes = store_->get(key_of(rank));
  std::istringstream text(std::string(bytes.begin(), bytes.end()));
  std::string kind;
  text >> kind;
  Note note{.kind = kind == "left" ? Kind::kLeft : Kind::kFailed};
  if (note.kind == Kind::kLeft) text >> note.calls;
  for (int r = 0; note.kind == Kind::kFailed && text >> r;) note.blamed.insert(r);
  return note;
}

RankBoard::Verdict RankBoard::judge(int64_t call, const std::set<int>& closed) const {
  Verdict verdict;
  try {
    if (closed.empty() && !store_->check({kCountKey})) return verdict;  // the usual case, in one request
    for (int r = 0; r < size_; ++r) {
      if (r == rank_) continue;
      const auto note = note_of(r);
      verdict.broken |= note.kind == Kind::kFailed;
      verdict.blamed.insert(note.blamed.begin(), note.blamed.end());
      const bool dead = note.kind == Kind::kNone && closed.contains(r);
      const bool left_early = note.kind == Kind::kLeft && note.calls < call;
      if (dead || left_early) verdict.blamed.insert(r);
    }
  } catch (const std::exception&) {
    return {};
  }
  verdict.broken |= !verdict.blamed.empty();
  return verdict;
}

std::set<int> RankBoard::silent(double grace_s) const {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::duration<double>(grace_s);
  std::set<int> missing;
  for (int r = 0; r < size_; ++r)
    if (r != rank_) missing.insert(r);
  try {
    while (true) {
      std::erase_if(missing, [&](int r) { return store_->check({key_of(r)}); });
      if (missing.empty() || std::chrono::steady_clock::now() >= deadline) return missing;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  } catch (const std::exception&) {
    return {};
  }
}

}  // namespace dovetail
