#include "dovetail/comm/rank_board.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <chrono>
#include <exception>
#include <sstream>
#include <thread>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <utility>

namespace dovetail::comm {
namespace {

constexpr const char* kCountKey = "notes";

std::string failed_key(int rank) { return fmt::format("failed/{}", rank); }

std::string text_of(c10d::Store& store, const std::string& key) {
  const auto bytes = store.get(key);
  return {bytes.begin(), bytes.end()};
}

}  // namespace

RankBoard::RankBoard(c10::intrusive_ptr<c10d::Store> store, std::string group, int rank,
                     std::vector<int> ranks)
    : store_(std::move(store)), group_(std::move(group)), rank_(rank), ranks_(std::move(ranks)) {}
RankBoard::~RankBoard() = default;

std::string RankBoard::left_key(int rank) const { return fmt::format("left/{}/{}", group_, rank); }

void RankBoard::post(const std::string& key, const std::string& note) {
  try {
    store_->set(key, std::vector<uint8_t>(note.begin(), note.end()));
    // The store answers this after `set` is done. So the note is there before any connection
    // closes.
    store_->add(kCountKey, 1);
  } catch (const std::exception&) {  // the store is gone, so nobody can read a note
  }
}

void RankBoard::post_left(int64_t calls) { post(left_key(rank_), fmt::format("{}", calls)); }
void RankBoard::post_failed(const std::set<int>& blamed) {
  post(failed_key(rank_), fmt::format("{}", fmt::join(blamed, " ")));
}

bool RankBoard::has_note(int rank) const {
  return store_->check({failed_key(rank)}) || store_->check({left_key(rank)});
}

RankBoard::Note RankBoard::note_of(int rank) const {
  Note note;
  if (store_->check({failed_key(rank)})) {
    note.kind = Kind::kFailed;
    std::istringstream text(text_of(*store_, failed_key(rank)));
    for (int r = 0; text >> r;) note.blamed.insert(r);
  } else if (store_->check({left_key(rank)})) {
    note.kind = Kind::kLeft;
    std::istringstream(text_of(*store_, left_key(rank))) >> note.calls;
  }
  return note;
}

RankBoard::Verdict RankBoard::agree_on_outcome(int64_t call, const std::set<int>& closed) const {
  Verdict verdict;
  try {
    if (closed.empty() && !store_->check({kCountKey}))
      return verdict;  // the usual case, in one request
    for (const int r : ranks_) {
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
  for (const int r : ranks_)
    if (r != rank_) missing.insert(r);
  try {
    while (true) {
      std::erase_if(missing, [&](int r) { return has_note(r); });
      if (missing.empty() || std::chrono::steady_clock::now() >= deadline) return missing;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  } catch (const std::exception&) {
    return {};
  }
}

}  // namespace dovetail::comm
