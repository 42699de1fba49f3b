#pragma once

#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <set>
#include <string>
#include <vector>

namespace c10d {
class Store;
}

namespace dovetail {

/// Where the ranks of a group leave a note for the others when they leave or fail, so that an error can name the rank
/// that is missing, and a connection that closed because its rank is done is no error.
///
/// The store outlives a dead rank (torchrun's agent hosts it). A note is posted before connections are closed; so a
/// rank whose connection is closed and that has posted nothing is dead. Where the store itself is gone nothing is
/// known: nobody is blamed then, and only Gloo's own errors count.
class RankBoard {
 public:
  RankBoard(c10::intrusive_ptr<c10d::Store> store, int rank, int size);
  ~RankBoard();

  void post_left(int64_t calls);  ///< this rank is done after so many calls
  void post_failed(const std::set<int>& blamed);

  struct Verdict {
    bool broken = false;   ///< call `call` cannot end well
    std::set<int> blamed;  ///< may be empty although it is broken
  };
  /// Given the ranks whose connections to this one are closed: dead ones, those that left before call number `call`,
  /// and all that a failed rank blames are to blame.
  Verdict judge(int64_t call, const std::set<int>& closed) const;

  /// Ranks that have posted nothing within `grace_s`; returns as soon as all have.
  std::set<int> silent(double grace_s) const;

 private:
  enum class Kind { kNone, kLeft, kFailed };
  struct Note {
    Kind kind = Kind::kNone;
    int64_t calls = 0;
    std::set<int> blamed;
  };
  void post(const std::string& note);
  Note note_of(int rank) const;

  c10::intrusive_ptr<c10d::Store> store_;
  int rank_, size_;
};

}  // namespace dovetail
