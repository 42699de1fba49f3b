#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "dovetail/embedding/pack/table.h"
#include "dovetail/embedding/tiers/row_cache.h"

namespace dovetail::embedding {

/// Memory of slots: places in memory for one row each, with its optimizer state.
struct SlotMemory {
  at::Device device = at::kCPU;
  /// True if rows move through buffers, because the host cannot read the slots. A GPU requires it.
  /// With slots on the CPU it has the same results, which tests compare.
  bool apart = false;

  /// Returns the memory of a device.
  static SlotMemory on(at::Device device) { return {.device = device, .apart = !device.is_cpu()}; }
};

/// Transfers of a SlotMover between host and GPU since construction.
struct SlotTransfers {
  int64_t to_slots = 0, from_slots = 0;  ///< number of transfers in each direction
  int64_t bytes_to = 0, bytes_from = 0;  ///< their bytes
  int64_t waits = 0;                     ///< number of times that the host waited for a transfer

  SlotTransfers& operator+=(const SlotTransfers& other);
};

/// Moves rows with their state between the slots of tables and the host. The slots of a table are
/// the rows of a table in PackedTables.
///
/// If the slots are apart (SlotMemory), a call of `move` is one transfer to the GPU. It has the
/// list of all moves and the rows that come. One kernel then reads the rows that leave from their
/// slots and writes the others. If rows leave, a second transfer brings them to the host. The call
/// does not wait for it: the next call does, or `settle`. All work is queued on torch's current
/// stream.
class SlotMover {
 public:
  /// Moves of each table. A slot occurs at most once. RowMove::row comes into the slot,
  /// RowMove::evicted leaves it.
  using Moves = std::vector<std::span<const RowMove>>;
  /// Writes the row that comes by moves[table][index] to `stored` (bytes of a stored row) and
  /// `state`. Several threads call it for different rows.
  using Read = std::function<void(int64_t table, int64_t index, char* stored, float* state)>;
  /// Takes a row that leaves (RowMove::evicted). Several threads call it for different rows.
  using Write =
      std::function<void(int64_t table, int64_t row, const char* stored, const float* state)>;
  /// Returns the number by which a row is rounded (RowRounding::row_of in row_format.h).
  using RoundingRow = std::function<uint32_t(int64_t table, int64_t row)>;

  /// `slots` must outlive this object. `zero_slots` has one slot of each table, or no element. If
  /// `rounding_row` is set, each row that comes into a slot sets PackedTables::set_rows_held.
  SlotMover(PackedTables& slots, bool apart, std::vector<int64_t> zero_slots = {},
            RoundingRow rounding_row = {});
  SlotMover(const SlotMover&) = delete;
  SlotMover& operator=(const SlotMover&) = delete;

  /// Returns the bytes for the rounding number of a slot.
  static constexpr int64_t kRoundingBytes = sizeof(uint32_t);

  /// Carries out moves. All rows that leave are handed to `write`. If the slots are apart, this may
  /// happen in the next call of `move` or in `settle`, before it calls `read`.
  void move(const Moves& moves, const Read& read, const Write& write);
  /// Hands over rows that are still on their way from the slots.
  void settle();
  /// Returns true if rows are on their way from the slots.
  bool pending() const { return pending_.has_value(); }
  /// Sets the rows and states in `zero_slots` to zeros.
  void clear_zero_slots();

  /// Returns zeros unless the slots are apart.
  const SlotTransfers& transfers() const { return transfers_; }

  /// Calls body(table, index) for all moves, on all threads.
  static void each(const Moves& moves,
                   const std::function<void(int64_t table, int64_t index)>& body);

 private:
  /// Slots of a table. The pointers are to the slots' memory.
  struct Table {
    char* rows;
    float* state;
    int64_t row_bytes, state_width;
    int64_t first;  ///< number of its first slot among the slots of all tables
    int64_t record_bytes() const;
  };
  /// Consecutive moves of a table, and the places of their records in the buffers.
  struct Piece {
    int64_t table, begin, end;  ///< indices of its moves in moves[table]
    int64_t number;             ///< number of its first move among all moves
    int64_t in = 0, out = 0;    ///< first byte of its records that come, and that leave
    int64_t leaving = 0;        ///< number of rows that leave before it
  };
  struct Leaving {
    int64_t table, row, out;
  };
  /// Rows on their way from the slots.
  struct Pending {
    std::vector<Leaving> rows;
    at::Tensor records;
    std::optional<c10::Event> arrival;  ///< nullopt on the CPU
    Write write;
  };

  static std::vector<Piece> pieces_of(const Moves& moves);
  void move_here(const Moves& moves, const Read& read, const Write& write);
  void move_apart(const Moves& moves, const Read& read, const Write& write);
  at::Tensor on_host(int64_t bytes) const;
  uint32_t* row_of() const;

  PackedTables& slots_;
  bool apart_;
  std::vector<int64_t> zero_slots_;
  RoundingRow rounding_row_;
  std::vector<Table> tables_;
  at::Tensor row_of_;       ///< (slots of all tables) int32; undefined without rounding_row_
  at::Tensor clear_moves_;  ///< CudaRowMoves that clear zero_slots_, in the slots' memory
  std::optional<Pending> pending_;
  SlotTransfers transfers_;
};

}  // namespace dovetail::embedding
