#include "dovetail/embedding/tiers/slot_mover.h"

#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "dovetail/base/error.h"
#include "dovetail/base/threads.h"
#include "dovetail/base/trace.h"
#include "dovetail/embedding/pack/cuda_kernels.h"
#include "dovetail/embedding/pack/lookup_cuda.h"

namespace dovetail::embedding {

namespace {

/// Moves in one piece of work.
constexpr int64_t kPiece = 64;
constexpr int64_t kMoveBytes = sizeof(CudaRowMove);
static_assert(kMoveBytes % CudaRowMove::kRecordAlign == 0, "records follow the moves");

int64_t state_bytes(int64_t width) { return width * static_cast<int64_t>(sizeof(float)); }

}  // namespace

SlotTransfers& SlotTransfers::operator+=(const SlotTransfers& other) {
  to_slots += other.to_slots;
  from_slots += other.from_slots;
  bytes_to += other.bytes_to;
  bytes_from += other.bytes_from;
  waits += other.waits;
  return *this;
}

int64_t SlotMover::Table::record_bytes() const {
  return padded(row_bytes) + padded(state_bytes(state_width));
}

SlotMover::SlotMover(PackedTables& slots, bool apart, std::vector<int64_t> zero_slots,
                     RoundingRow rounding_row)
    : slots_(slots),
      apart_(apart),
      zero_slots_(std::move(zero_slots)),
      rounding_row_(std::move(rounding_row)) {
  DOVETAIL_CHECK(apart || slots.device().is_cpu(), "slots on {}", slots.device().str());
  int64_t all = 0;
  for (int64_t t = 0; t < std::ssize(slots.spec().tables); ++t) {
    const TableSpec& table = slots.spec().tables[static_cast<size_t>(t)];
    tables_.push_back({.rows = slots.row_data(t),
                       .state = slots.packed_state(t).mutable_data_ptr<float>(),
                       .row_bytes = row_bytes(slots.spec().row_dtype, table.dim),
                       .state_width = state_per_row(slots.spec().optimizer.kind, table.dim),
                       .first = all});
    all += table.rows;
  }
  if (rounding_row_) {
    row_of_ = at::empty({all}, at::TensorOptions(slots.device()).dtype(at::kInt));
    for (size_t t = 0; t < tables_.size(); ++t)
      slots.set_rows_held(static_cast<int64_t>(t), row_of() + tables_[t].first);
  }
  if (zero_slots_.empty()) return;
  if (apart_) {
    std::vector<CudaRowMove> moves;
    for (size_t t = 0; t < zero_slots_.size(); ++t)
      moves.push_back({.out = CudaRowMove::kNone,
                       .in = CudaRowMove::kZeros,
                       .table = static_cast<uint32_t>(t),
                       .slot = static_cast<uint32_t>(zero_slots_[t]),
                       .row = 0});
    clear_moves_ = at::empty({std::ssize(moves) * kMoveBytes}, at::kByte);
    std::memcpy(clear_moves_.mutable_data_ptr(), moves.data(), clear_moves_.nbytes());
    clear_moves_ = clear_moves_.to(slots.device());
  }
  clear_zero_slots();
}

uint32_t* SlotMover::row_of() const {
  return row_of_.defined() ? static_cast<uint32_t*>(row_of_.mutable_data_ptr()) : nullptr;
}

at::Tensor SlotMover::on_host(int64_t bytes) const {
  return at::empty({bytes}, at::TensorOptions(at::kByte).pinned_memory(!slots_.device().is_cpu()));
}

std::vector<SlotMover::Piece> SlotMover::pieces_of(const Moves& moves) {
  std::vector<Piece> pieces;
  int64_t number = 0;
  for (int64_t t = 0; t < std::ssize(moves); ++t) {
    const int64_t count = std::ssize(moves[static_cast<size_t>(t)]);
    for (int64_t begin = 0; begin < count; begin += kPiece) {
      const int64_t end = std::min(begin + kPiece, count);
      pieces.push_back({.table = t, .begin = begin, .end = end, .number = number});
      number += end - begin;
    }
  }
  return pieces;
}

void SlotMover::each(const Moves& moves,
                     const std::function<void(int64_t table, int64_t index)>& body) {
  const std::vector<Piece> pieces = pieces_of(moves);
  parallel_pieces(std::ssize(pieces), 1, [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p) {
      const Piece& piece = pieces[static_cast<size_t>(p)];
      for (int64_t i = piece.begin; i < piece.end; ++i) body(piece.table, i);
    }
  });
}

void SlotMover::move(const Moves& moves, const Read& read, const Write& write) {
  settle();
  apart_ ? move_apart(moves, read, write) : move_here(moves, read, write);
}

void SlotMover::move_here(const Moves& moves, const Read& read, const Write& write) {
  each(moves, [&](int64_t t, int64_t i) {
    const Table& table = tables_[static_cast<size_t>(t)];
    const RowMove& move = moves[static_cast<size_t>(t)][static_cast<size_t>(i)];
    char* stored = table.rows + move.slot * table.row_bytes;
    float* state = table.state + move.slot * table.state_width;
    if (move.evicted >= 0) write(t, move.evicted, stored, state);
    if (move.row < 0) return;
    read(t, i, stored, state);
    if (rounding_row_) row_of()[table.first + move.slot] = rounding_row_(t, move.row);
  });
}

void SlotMover::move_apart(const Moves& moves, const Read& read, const Write& write) {
  std::vector<Piece> pieces = pieces_of(moves);
  if (pieces.empty()) return;
  const int64_t count = pieces.back().number + pieces.back().end - pieces.back().begin;
  int64_t in_bytes = 0, out_bytes = 0, leaving = 0;
  for (Piece& piece : pieces) {
    const int64_t record = tables_[static_cast<size_t>(piece.table)].record_bytes();
    piece.in = in_bytes;
    piece.out = out_bytes;
    piece.leaving = leaving;
    for (int64_t i = piece.begin; i < piece.end; ++i) {
      const RowMove& move = moves[static_cast<size_t>(piece.table)][static_cast<size_t>(i)];
      if (move.row >= 0) in_bytes += record;
      if (move.evicted < 0) continue;
      out_bytes += record;
      ++leaving;
    }
  }
  const at::Tensor buffer = on_host(count * kMoveBytes + in_bytes);
  auto* list = static_cast<CudaRowMove*>(buffer.mutable_data_ptr());
  char* records = reinterpret_cast<char*>(list + count);
  Pending pending{.rows = std::vector<Leaving>(static_cast<size_t>(leaving)),
                  .records = {},
                  .arrival = {},
                  .write = write};
  parallel_pieces(std::ssize(pieces), 1, [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p) {
      const Piece& piece = pieces[static_cast<size_t>(p)];
      const Table& table = tables_[static_cast<size_t>(piece.table)];
      int64_t in = piece.in, out = piece.out, left = piece.leaving;
      for (int64_t i = piece.begin; i < piece.end; ++i) {
        const RowMove& move = moves[static_cast<size_t>(piece.table)][static_cast<size_t>(i)];
        CudaRowMove& to = list[piece.number + i - piece.begin];
        to = {.out = CudaRowMove::kNone,
              .in = CudaRowMove::kNone,
              .table = static_cast<uint32_t>(piece.table),
              .slot = static_cast<uint32_t>(move.slot),
              .row = 0};
        if (move.evicted >= 0) {
          to.out = out;
          pending.rows[static_cast<size_t>(left++)] = {piece.table, move.evicted, out};
          out += table.record_bytes();
        }
        if (move.row < 0) continue;
        to.in = in;
        if (rounding_row_) to.row = rounding_row_(piece.table, move.row);
        read(piece.table, i, records + in,
             reinterpret_cast<float*>(records + in + padded(table.row_bytes)));
        in += table.record_bytes();
      }
    }
  });
  const at::Device device = slots_.device();
  const c10::DeviceGuard guard(device);
  const at::Tensor there = buffer.to(device, /*non_blocking=*/true),
                   out = at::empty({out_bytes}, there.options());
  ++transfers_.to_slots;
  transfers_.bytes_to += static_cast<int64_t>(buffer.nbytes());
  auto* moves_there = static_cast<CudaRowMove*>(there.mutable_data_ptr());
  move_rows(slots_, {.pack = {},
                     .moves = moves_there,
                     .count = count,
                     .in = reinterpret_cast<const char*>(moves_there + count),
                     .out = static_cast<char*>(out.mutable_data_ptr()),
                     .row_of = row_of()});
  if (leaving == 0) return;
  ++transfers_.from_slots;
  transfers_.bytes_from += out_bytes;
  pending.records = out;
  if (!device.is_cpu()) {
    pending.records = on_host(out_bytes);
    pending.records.copy_(out, /*non_blocking=*/true);
    pending.arrival.emplace(device.type());
    pending.arrival->record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  }
  pending_ = std::move(pending);
}

void SlotMover::settle() {
  if (!pending_) return;
  const TraceSpan span("dovetail::embedding_rows_back");
  const Pending pending = std::move(*std::exchange(pending_, std::nullopt));
  if (pending.arrival) pending.arrival->synchronize();
  ++transfers_.waits;
  const auto* records = static_cast<const char*>(pending.records.const_data_ptr());
  parallel_pieces(std::ssize(pending.rows), kPiece, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const Leaving& row = pending.rows[static_cast<size_t>(i)];
      const char* stored = records + row.out;
      const int64_t state_at = padded(tables_[static_cast<size_t>(row.table)].row_bytes);
      pending.write(row.table, row.row, stored, reinterpret_cast<const float*>(stored + state_at));
    }
  });
}

void SlotMover::clear_zero_slots() {
  if (apart_) {
    return move_rows(slots_, {.pack = {},
                              .moves = clear_moves_.defined() ? static_cast<const CudaRowMove*>(
                                                                    clear_moves_.const_data_ptr())
                                                              : nullptr,
                              .count = std::ssize(zero_slots_),
                              .in = nullptr,
                              .out = nullptr,
                              .row_of = nullptr});
  }
  for (size_t t = 0; t < zero_slots_.size(); ++t) {
    const Table& table = tables_[t];
    std::fill_n(table.rows + zero_slots_[t] * table.row_bytes, table.row_bytes, char{0});
    std::fill_n(table.state + zero_slots_[t] * table.state_width, table.state_width, 0.0f);
  }
}

}  // namespace dovetail::embedding
