/// \file
/// Copies by TMA: what is checked when they start, and what they do when the engine lets them (async_engine.hpp).
///
/// The bytes that a copy may touch belong to it from its start: that is when the checking build notes its accesses.

#include "common/gpu/tma.cuh"

#include <algorithm>
#include <deque>

#include "common/gpu/emulator/access.hpp"
#include "common/gpu/emulator/block.hpp"
#include "common/gpu/emulator/memory.hpp"
#include "common/gpu/emulator/tensor_box.hpp"

namespace gpu::emulator {
namespace {

/// A box and where it goes: what both directions have in common.
struct Box {
  TensorDescription map{};
  int at[5]{};
  std::size_t tile = 0;  ///< offset in shared memory

  std::span<const int> coordinates() const { return {at, map.rank}; }
};

Box checked_box(const TensorMap& map, std::span<const int> at, const void* smem, BoxMove move, const char* name,
                Site site) {
  const Block& block = *t_thread->block;
  const auto refuse = [&](const std::string& sentence) { fault(site, std::string(name) + ": " + sentence); };
  if (!is_tensor_map(map)) refuse("this is not a tensor map that make_tensor_map() has made");
  Box box{describe(map)};
  const std::ptrdiff_t offset = block.shared_offset(smem, 1);
  if (offset < 0) refuse("the tile is not in this block's shared memory");
  box.tile = static_cast<std::size_t>(offset);
  const std::string wrong = box_fault(box.map, at, box.tile, block.memory->shared_bytes(), move);
  if (!wrong.empty()) refuse(wrong);
  std::copy(at.begin(), at.end(), box.at);
  for (std::uint32_t i = 0; i < box.map.rows(); ++i) {
    const BoxRow row = box_row(box.map, at, i);
    if (row.inside_bytes == 0) continue;
    const auto first = reinterpret_cast<std::uintptr_t>(row.global), last = first + row.inside_bytes - 1;
    const Allocation* buffer = find_allocation(first);
    if (is_foreign(first) && is_foreign(last)) continue;
    if (buffer && !buffer->freed && buffer->holds(first) && buffer->holds(last)) continue;
    refuse("the tensor map describes more than its buffer has: " +
           describe_address(buffer && buffer->holds(first) ? last : first));
  }
  return box;
}

/// Calls visit(offset, bytes) for the pieces of shared memory that hold the part of a row that is inside the array.
template <class Visit>
void for_each_inside(const Box& box, const BoxRow& row, Visit&& visit) {
  constexpr std::uint32_t kChunk = 16;
  const std::uint32_t end = row.inside_from + row.inside_bytes;
  for (std::uint32_t i = row.inside_from; i < end;) {
    const std::uint32_t next = std::min(end, i / kChunk * kChunk + kChunk);
    const std::uint32_t chunk = static_cast<std::uint32_t>(box.tile) + row.offset + i / kChunk * kChunk;
    visit(swizzled_offset(box.map.swizzle, chunk) + i % kChunk, next - i);
    i = next;
  }
}

template <class Visit>
void for_each_row(const Box& box, Visit&& visit) {
  for (std::uint32_t i = 0; i < box.map.rows(); ++i) {
    const BoxRow row = box_row(box.map, box.coordinates(), i);
    if (row.inside_bytes) visit(row);
  }
}

// ---- loads

class Load final : public AsyncOperation {
 public:
  Load(const char* operation, Place started_at, const Box& box, Block& block, MbarrierState& barrier, int agent)
      : AsyncOperation(operation, started_at, block.rank), box_(box), block_(block), barrier_(barrier), agent_(agent) {
    if (block_.race) time_ = block_.race->operation_time(agent_);
  }

 protected:
  bool do_part(int) override {
    load_box(box_.map, box_.coordinates(), block_.memory->shared(), box_.tile, [](const BoxRow&) {});
    if (block_.race) block_.race->end_operation(agent_);
    deliver_bytes(block_, barrier_, box_.map.box_bytes(), agent_, time_, place);
    return false;
  }

 private:
  const Box box_;
  Block& block_;
  MbarrierState& barrier_;
  const int agent_;
  std::uint32_t time_ = 0;
};

/// The part of a load that arrives in one block.
void start_load_into(Block& to, const Box& box, MbarrierState& barrier, const char* name, Site site) {
  Thread& me = *t_thread;
  const Place place = Place::site(site);
  int agent = -1;
  if (to.race) {
    const int issuer = to.race->agent_of(me);
    agent = to.race->start_operation(&issuer, 1, name, place);
    for_each_row(box, [&](const BoxRow& row) {
      check_device_access(agent, row.global, row.inside_bytes, AccessKind::load, place);
    });
    to.race->shared_access(agent, to.rank, box.tile, box.map.box_bytes(), AccessKind::store, place);
    t_worker->counts.shared_stores.bytes += box.map.box_bytes();
  }
  const auto load = std::make_shared<Load>(name, place, box, to, barrier, agent);
  if (to.launch.options.delivery == Delivery::immediately) {
    load->advance();
  } else {
    std::memset(to.memory->shared() + box.tile, 0xFF, box.map.box_bytes());
    to.cluster.async.start(load);
  }
}

void count_loaded(const Box& box) {
  if (!checking()) return;
  for_each_row(box, [&](const BoxRow& row) { t_worker->counts.global_loads.bytes += row.inside_bytes; });
}

std::size_t barrier_offset(const Mbarrier& barrier, const char* name, Site site) {
  const std::ptrdiff_t offset = t_thread->block->shared_offset(&barrier, sizeof barrier);
  if (offset < 0) fault(site, std::string(name) + ": the barrier is not in this block's shared memory");
  return static_cast<std::size_t>(offset);
}

// ---- stores

class Store final : public AsyncOperation {
 public:
  Store(const char* operation, Place started_at, const Box& box, bool adds, Block& block, int agent)
      : AsyncOperation(operation, started_at, block.rank), box_(box), adds_(adds), block_(block), agent_(agent) {}

  std::uint32_t read_time = 0, write_time = 0;
  int agent() const { return agent_; }

 protected:
  bool do_part(int part) override {
    // A swizzle's pattern repeats after at most 1024 bytes: the copy lies as the tile does.
    const std::size_t tile = box_.tile % 1024;
    if (part == 0) {
      bytes_.resize(tile + box_.map.box_bytes());
      std::memcpy(bytes_.data() + tile, block_.memory->shared() + box_.tile, box_.map.box_bytes());
      return true;
    }
    const auto ignore = [](const BoxRow&) {};
    if (adds_) {
      reduce_add_box(box_.map, box_.coordinates(), bytes_.data(), tile, ignore);
    } else {
      store_box(box_.map, box_.coordinates(), bytes_.data(), tile, ignore);
    }
    if (block_.race) block_.race->end_operation(agent_);
    block_.progress();
    return false;
  }

 private:
  const Box box_;
  const bool adds_;
  Block& block_;
  const int agent_;
  std::vector<unsigned char> bytes_;
};

}  // namespace

/// The stores of a thread: committed groups, oldest first, and the open one.
struct StoreGroups {
  struct Group {
    std::vector<std::shared_ptr<Store>> stores;
    bool read = false;  ///< the thread knows that shared memory has been read
  };
  std::deque<Group> groups;
  std::vector<std::shared_ptr<Store>> open;
};

void start_load(void* to_smem, const TensorMap& map, Mbarrier& barrier, std::span<const int> at, Site site) {
  const Unwatched scope;
  const Box box = checked_box(map, at, to_smem, BoxMove::load, "tma_load", site);
  Block& block = *t_thread->block;
  MbarrierState& state = mbarrier_for_operation(block, barrier_offset(barrier, "tma_load", site), "tma_load", site);
  record(TimelineEvent::Kind::issue, site);
  count_loaded(box);
  start_load_into(block, box, state, "tma_load", site);
}

void start_multicast(void* to_smem, const TensorMap& map, Mbarrier& barrier, std::uint16_t blocks,
                     std::span<const int> at, Site site) {
  const Unwatched scope;
  const char* const name = "tma_load_multicast";
  const Box box = checked_box(map, at, to_smem, BoxMove::load, name, site);
  const std::size_t offset = barrier_offset(barrier, name, site);
  if (blocks == 0) fault(site, "tma_load_multicast: the mask names no block");
  record(TimelineEvent::Kind::issue, site);
  count_loaded(box);
  for (std::uint32_t rank = 0; rank < 16; ++rank) {
    if (!(blocks >> rank & 1u)) continue;
    Block& to = block_in_cluster(rank, name, site);
    start_load_into(to, box, mbarrier_for_operation(to, offset, name, site), name, site);
  }
}

void start_store(const TensorMap& map, const void* from_smem, bool adds, std::span<const int> at, Site site) {
  const Unwatched scope;
  const char* const name = adds ? "tma_reduce_add" : "tma_store";
  const Box box = checked_box(map, at, from_smem, BoxMove::store, name, site);
  if (adds) {
    const std::string wrong = reduce_fault(box.map);
    if (!wrong.empty()) fault(site, wrong);
  }
  Thread& me = *t_thread;
  Block& block = *me.block;
  record(TimelineEvent::Kind::issue, site);
  const Place place = Place::site(site);
  int agent = -1;
  std::uint32_t read_time = 0, write_time = 0;
  if (block.race) {
    const int issuer = block.race->agent_of(me);
    agent = block.race->start_operation(&issuer, 1, name, place);
    for_each_row(box, [&](const BoxRow& row) {
      for_each_inside(box, row, [&](std::uint32_t offset, std::uint32_t bytes) {
        block.race->shared_access(agent, block.rank, offset, bytes, AccessKind::load, place);
      });
    });
    read_time = block.race->operation_time(agent);
    for_each_row(box, [&](const BoxRow& row) {
      check_device_access(agent, row.global, row.inside_bytes, adds ? AccessKind::atomic : AccessKind::store, place);
      t_worker->counts.shared_loads.bytes += row.inside_bytes;
      t_worker->counts.global_stores.bytes += row.inside_bytes;
      if (adds) t_worker->counts.global_loads.bytes += row.inside_bytes;
    });
    write_time = block.race->operation_time(agent);
  }
  const auto store = std::make_shared<Store>(name, place, box, adds, block, agent);
  store->read_time = read_time;
  store->write_time = write_time;
  if (block.launch.options.delivery == Delivery::immediately) {
    while (store->advance()) {
    }
  } else {
    block.cluster.async.start(store);
  }
  if (!me.stores) me.stores = std::make_shared<StoreGroups>();
  me.stores->open.push_back(store);
}

void commit_stores() {
  const Unwatched scope;
  Thread& me = *t_thread;
  if (!me.stores) me.stores = std::make_shared<StoreGroups>();
  me.stores->groups.push_back({std::move(me.stores->open)});
  me.stores->open.clear();
}

void wait_stores(std::size_t newest_left, bool visible, Site site) {
  const Unwatched scope;
  if (switched_off(site)) return;
  Thread& me = *t_thread;
  Block& block = *me.block;
  const TimelineWait timeline(site);
  if (!me.stores) return;
  auto& groups = me.stores->groups;
  const std::size_t waited = groups.size() - std::min(groups.size(), newest_left);
  for (std::size_t g = 0; g < waited; ++g) {
    StoreGroups::Group& group = groups[g];
    if (group.read && !visible) continue;
    group.read = true;
    for (const auto& store : group.stores) {
      block.cluster.async.advance(*store, visible ? 2 : 1);
      if (!block.race) continue;
      const int agent = block.race->agent_of(me);
      block.race->acquire_operation(agent, store->agent(), visible ? store->write_time : store->read_time);
    }
  }
  if (visible) groups.erase(groups.begin(), groups.begin() + static_cast<std::ptrdiff_t>(waited));
}

/// A thread may not leave stores behind that still read: its block's shared memory goes to the next block.
void require_no_stores(const Thread& thread) {
  if (!thread.stores) return;
  for (const auto& group : thread.stores->groups) {
    if (group.read || group.stores.empty()) continue;
    const Store& store = *group.stores.front();
    throw Error(store.place.name() + ": the thread exits without waiting for this " + store.name +
                " to have read shared memory: tma_store_wait_read<0>() has to come first " + position(thread));
  }
  if (!thread.stores->open.empty()) {
    const Store& store = *thread.stores->open.front();
    throw Error(store.place.name() + ": the thread exits without committing this " + store.name + " " +
                position(thread));
  }
}

void prefetch_map(const TensorMap& map, Site site) {
  const Unwatched scope;
  if (!is_tensor_map(map)) fault(site, "tma_prefetch: this is not a tensor map that make_tensor_map() has made");
}

}  // namespace gpu::emulator
