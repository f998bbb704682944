// What Lua wants to be in a snapshot file.
#pragma once

#include <vector>

#include "lua/bind.h"
#include "snapshot/writer.h"

namespace het::lua {

struct SnapshotContent {
  SnapshotManifest manifest;
  std::vector<SnapshotPart> parts;  // each tensor whole; they hold what they read
};

// {run, step, generation, plan, rank, ranks, cursor, seed, about = JSON, tensors = {{name, trained, tensor =
// a tensor or a stored one}}} at `table`. Throws Error(usage).
SnapshotContent snapshot_content_at(lua_State* L, int table);

}  // namespace het::lua
