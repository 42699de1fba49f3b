#pragma once

#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <set>
#include <string>
#include <vector>

namespace c10d {
class Store;
}

namespace dovetail::comm {

/// Notice board of a group: each rank posts a note when it leaves the group or fails. Errors can
/// then name the missing rank. A connection that closed because its rank has left is no error.
///
/// Notes are entries in the job's c10d key-value store. A world and all groups split from it share
/// one store. A rank leaves each group separately, but fails in all of them at once. Ranks are
/// numbered as in the world, here and in every error.
///
/// The store outlives a dead rank, because torchrun's agent hosts it. A note is posted before
/// connections are closed. So a rank with a closed connection and no note is dead. If the store
/// itself is gone, no rank is blamed and only Gloo's own errors count.
class RankBoard {
 public:
  /// `group` is a name that is unique in the store. `rank` is this rank, and `ranks` are the
  /// members.
  RankBoard(c10::intrusive_ptr<c10d::Store> store, std::string group, int rank,
            std::vector<int> ranks);
  ~RankBoard();

  /// Posts that this rank has left this group, after `calls` calls of collectives.
  void post_left(int64_t calls);
  /// Posts that this rank failed, for every group of the store. `blamed` are the ranks that caused
  /// the failure, as far as this rank knows.
  void post_failed(const std::set<int>& blamed);

  struct Verdict {
    bool broken = false;   ///< true if the call cannot succeed
    std::set<int> blamed;  ///< ranks that are the cause; may be empty even if `broken`
  };
  /// Judges from the notes whether this group's call number `call` can succeed. `closed` are the
  /// ranks whose connections to this rank are closed. The call is broken if a rank failed or if any
  /// rank is blamed. Blamed ranks are
  ///
  /// - dead ranks
  /// - ranks that left before this call
  /// - all ranks that a failed rank blames
  Verdict agree_on_outcome(int64_t call, const std::set<int>& closed) const;

  /// Waits up to `grace_s` seconds until all other ranks of the group have posted a note. Returns
  /// the ranks that have not.
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

}  // namespace dovetail::comm
