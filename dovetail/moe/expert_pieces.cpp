#include "dovetail/moe/expert_pieces.h"

namespace dovetail::moe {

std::vector<Run> runs_of_width(at::TensorList down) {
  std::vector<Run> runs;
  for (int64_t e = 0; e < static_cast<int64_t>(down.size()); ++e) {
    const int64_t width = down[static_cast<size_t>(e)].size(1);
    if (runs.empty() || runs.back().width != width)
      runs.push_back({.first = e, .end = e, .width = width});
    runs.back().end = e + 1;
  }
  return runs;
}

std::vector<Piece> pieces_of(const DispatchedRows& to, const std::vector<Run>& runs,
                             int64_t enough) {
  std::vector<Piece> pieces;
  for (size_t i = 0; i < runs.size(); ++i) {
    for (int64_t e = runs[i].first; e < runs[i].end; ++e) {
      if (pieces.empty() || pieces.back().run != i || pieces.back().rows >= enough)
        pieces.push_back({.run = i, .first = e, .end = e, .row = to.first(e), .rows = 0});
      pieces.back().end = e + 1;
      pieces.back().rows += to.count(e);
    }
  }
  return pieces;
}

at::Tensor of_expert(const DispatchedRows& to, const Piece& piece, const at::Tensor& rows,
                     int64_t e) {
  return rows.narrow(0, to.first(e) - piece.row, to.count(e));
}

at::Tensor of_piece(const DispatchedRows& to, const std::vector<Run>& runs, const Piece& piece,
                    const at::Tensor& matrix) {
  return matrix.narrow(0, piece.row - to.first(runs[piece.run].first), piece.rows);
}

}  // namespace dovetail::moe
