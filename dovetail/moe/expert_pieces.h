#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "dovetail/moe/dispatch.h"

/// Neighbouring experts that are computed together, and the rows of a dispatch that belong to them.
namespace dovetail::moe {

/// Neighbouring experts [first, end) of equal width. Their rows form one matrix.
struct Run {
  int64_t first, end, width;
};

/// Returns the runs of the experts whose matrices are `down`, each (C, width).
std::vector<Run> runs_of_width(at::TensorList down);

/// Experts [first, end) of run `run`, with rows [row, row + rows) of the dispatch.
struct Piece {
  size_t run;
  int64_t first, end, row, rows;
};

/// Divides the experts of each run into pieces. A piece ends once it has `enough` rows.
std::vector<Piece> pieces_of(const DispatchedRows& to, const std::vector<Run>& runs,
                             int64_t enough);

/// Returns the rows of expert `e` in `rows`, which has the rows of a piece.
at::Tensor of_expert(const DispatchedRows& to, const Piece& piece, const at::Tensor& rows,
                     int64_t e);

/// Returns the rows of a piece in `matrix`, which has the rows of its run.
at::Tensor of_piece(const DispatchedRows& to, const std::vector<Run>& runs, const Piece& piece,
                    const at::Tensor& matrix);

}  // namespace dovetail::moe
