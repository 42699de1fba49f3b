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

/// Where the ranks of a group leave a note for the others when they leave or fail, so that an error
/// can name the rank that is missing, and a connection that closed because its rank is done is no
/// error.
///
/// A world and all groups that were split from it share one store. A rank leaves each group by
/// itself, but fails in all of them at once. Ranks are numbered as in the world, here and in every
/// error.
///
/// The store outlives a dead rank (torchrun's agent hosts it). A note is posted before connections
/// are closed; so a rank whose connection is closed and that has posted nothing is dead. Where the
/// store itself is gone nothing is known: nobody is blamed then, and only Gloo's own errors count.
class RankBoard {
 public:
  /// `group` is a name of its own for each group of the store; `ranks` are its members in the
  /// world's numbers.
  RankBoard(c10::intrusive_ptr<c10d::Store> store, std::string group, int rank,
            std::vector<int> ranks);
  ~RankBoard();

  void post_left(int64_t calls);  ///< this rank is done with this group after so many calls
  void post_failed(const std::set<int>& blamed);  ///< in every group of the store

  struct Verdict {
    bool broken = false;   ///< call `call` cannot end well
    std::set<int> blamed;  ///< may be empty although it is broken
  };
  /// Given the ranks whose connections to this one are closed: dead ones, those that left before
  /// call number `call`, and all that a failed rank blames are to blame.
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
  void post(const std::string& key, const std::string& note);
  std::string left_key(int rank) const;
  bool has_note(int rank) const;
  Note note_of(int rank) const;

  c10::intrusive_ptr<c10d::Store> store_;
  std::string group_;
  int rank_;
  std::vector<int> ranks_;
};

}  // namespace dovetail
