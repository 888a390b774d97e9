/// \file
/// Products by warpgroups.
///
/// A product is started by the lanes of each of the four warps together, and computed a warp at a time, when the warp
/// waits for it (with Delivery::immediately: when it starts). Until then d, which is a local array here, holds a
/// pattern that is a NaN: it shows whether somebody has written there. What d held before is kept beside it, for
/// products that add to it.

#include "common/gpu/wgmma.cuh"

#include <algorithm>
#include <bit>
#include <deque>

#include "common/gpu/emulator/block.hpp"

namespace gpu::emulator {
namespace {

constexpr unsigned kAllLanes = ~0u;
constexpr int kWarps = 4;
constexpr std::uint32_t kPoison = 0xffbfffffu;  ///< a signalling NaN: arithmetic turns it into another one

std::string line_of(Site site) { return short_path(site.file) + ":" + std::to_string(site.line); }

bool is_poison(const float* d, int count) {
  return std::all_of(d, d + count, [](float x) { return std::bit_cast<std::uint32_t>(x) == kPoison; });
}
void poison(float* d, int count) { std::fill(d, d + count, std::bit_cast<float>(kPoison)); }

/// An array that a product adds to.
struct Accumulators {
  float* d;
  std::size_t count;
  /// While a product is under way: what the registers hold by then. Otherwise: what they held at the last fence or
  /// wait.
  std::vector<float> values;
  bool under_way = false;
  bool fenced = false;     ///< since the last wait
  std::uint64_t last = 0;  ///< number of the thread's last product with them
  Site site{};             ///< of that product

  bool overlaps(const void* address, std::size_t bytes) const {
    const auto begin = reinterpret_cast<std::uintptr_t>(d), at = reinterpret_cast<std::uintptr_t>(address);
    return at < begin + count * sizeof(float) && begin < at + bytes;
  }
};

/// Four registers that were an A.
struct ARegisters {
  const std::uint32_t* a;
  std::uint32_t values[4];  ///< at the product that is under way; otherwise at the last fence or wait
  bool under_way = false;
  std::uint64_t last = 0;
  Site site{};
};

}  // namespace

/// What a thread has to do with products.
struct ThreadProducts {
  std::vector<Accumulators> accumulators;
  std::vector<ARegisters> a_registers;
  bool fenced = false;             ///< ever
  std::uint64_t started = 0;       ///< products
  std::uint64_t groups = 0;        ///< committed
  std::deque<std::uint64_t> open;  ///< groups that have not been waited for: the number of products up to their ends
  Site last;                       ///< of the last product
};

namespace {

/// A product as a warp has started it.
struct WarpProduct {
  ProductRequest request;  ///< of lane 0
  Site site;
  std::uint32_t a[32][4];
  float* d[32];
};

/// The reader of a group's operands, in the checking build.
struct GroupReader {
  std::uint64_t group;
  int operation;
};

struct WarpProducts {
  std::uint64_t started = 0, computed = 0;
  std::deque<WarpProduct> under_way;  ///< numbers computed … started − 1
  std::deque<GroupReader> readers;
};

/// What the four warps have to agree on.
struct AgreedProduct {
  ProductRequest request;
  Site site;
  unsigned warps = 0;  ///< that have started it
};

bool agree(const ProductRequest& x, const ProductRequest& y) {
  return x.element == y.element && x.n == y.n && x.major_a == y.major_a && x.major_b == y.major_b &&
         x.a_descriptor.bits == y.a_descriptor.bits && x.b_descriptor.bits == y.b_descriptor.bits &&
         (x.a == nullptr) == (y.a == nullptr) && x.accumulate == y.accumulate;
}

}  // namespace

struct WarpgroupProducts : WaitObject {
  std::uint64_t first = 0;           ///< number of the oldest product below
  std::deque<AgreedProduct> agreed;  ///< those that not all warps have started
  WarpProducts warps[kWarps];
  std::vector<int> waiting;

  /// Whether all four warps have started the products before this number.
  bool complete_before(std::uint64_t end) const { return end <= first; }
  std::string describe(const Thread&) const override {
    const AgreedProduct& oldest = agreed.front();
    std::string text =
        ": the wgmma at " + line_of(oldest.site) + " is for all four warps of a warpgroup; not started by warp ";
    for (int w = 0; w < kWarps; ++w) {
      if (!(oldest.warps >> w & 1u)) text += std::to_string(w) + " ";
    }
    return text + "of the four";
  }
};

namespace {

WarpgroupProducts& warpgroup_of(Block& block, int warp) {
  return *block.products[static_cast<std::size_t>(warp / kWarps)];
}

ThreadProducts& products_of(Thread& thread) {
  if (!thread.products) thread.products = std::make_shared<ThreadProducts>();
  return *thread.products;
}

void note_under_way(Thread& thread) {
  const ThreadProducts& products = *thread.products;
  const auto under_way = [](const auto& registers) { return registers.under_way; };
  thread.products_in_flight = std::any_of(products.accumulators.begin(), products.accumulators.end(), under_way) ||
                              std::any_of(products.a_registers.begin(), products.a_registers.end(), under_way);
}

// ---- what a lane brings

bool is_local(const Thread& thread, const void* registers, std::size_t bytes) {
  const auto address = reinterpret_cast<std::uintptr_t>(registers);
  return address >= thread.stack_low && address + bytes <= thread.stack_high;
}

void bring_accumulators(Thread& me, const ProductRequest& request, Site site) {
  ThreadProducts& mine = products_of(me);
  const auto count = static_cast<std::size_t>(request.n / 2);
  if (!is_local(me, request.d, count * sizeof(float))) fault(site, "wgmma: d has to be a local array of the thread");
  Accumulators* known = nullptr;
  bool replaces = false;
  for (Accumulators& other : mine.accumulators) {
    if (other.d == request.d && other.count == count) {
      known = &other;
    } else if (other.overlaps(request.d, count * sizeof(float))) {
      replaces = true;
      if (!other.under_way) continue;
      fault(site, "wgmma: d is also that of the wgmma at " + line_of(other.site) +
                      ", which is under way with another shape: wgmma_wait has to come first");
    }
  }
  if (replaces) {  // arrays of another time, in whose place this one is
    std::erase_if(mine.accumulators, [&](const Accumulators& other) {
      return &other != known && other.overlaps(request.d, count * sizeof(float));
    });
    known = nullptr;
    for (Accumulators& other : mine.accumulators) {
      if (other.d == request.d) known = &other;
    }
  }
  if (!known) {
    mine.accumulators.push_back({request.d, count, std::vector<float>(count)});
    known = &mine.accumulators.back();
    known->fenced = mine.fenced;
    if (!mine.fenced) {
      fault(site,
            "wgmma: no wgmma_fence() lies between ordinary code, which has d's registers until then, and this "
            "first product");
    }
    std::copy_n(request.d, count, known->values.begin());
  } else if (known->under_way) {
    if (!is_poison(request.d, request.n / 2)) {
      fault(site, "wgmma: somebody has written to d since the wgmma at " + line_of(known->site) +
                      ", which is under way: wgmma_wait has to come first");
    }
  } else if (std::memcmp(request.d, known->values.data(), count * sizeof(float)) != 0) {
    // Without `accumulate` the old contents do not matter, but for a fence that orders who had the registers before.
    if (request.accumulate || !known->fenced) {
      fault(site, "wgmma: no wgmma_fence() lies between ordinary code that wrote d and this product");
    }
    std::copy_n(request.d, count, known->values.begin());
  }
  if (!known->under_way) poison(request.d, request.n / 2);
  known->under_way = true;
  known->last = mine.started;
  known->site = site;
}

void bring_a(Thread& me, const ProductRequest& request, Site site) {
  if (!request.a) return;
  ThreadProducts& mine = products_of(me);
  ARegisters* known = nullptr;
  for (ARegisters& other : mine.a_registers) {
    if (other.a == request.a) known = &other;
  }
  if (!known) {
    mine.a_registers.push_back({request.a, {}});
    known = &mine.a_registers.back();
  } else if (std::memcmp(known->values, request.a, sizeof known->values) != 0) {
    fault(site, known->under_way
                    ? "wgmma: a has been written since the wgmma at " + line_of(known->site) +
                          ", which is under way and reads it: wgmma_wait has to come first"
                    : std::string("wgmma: no wgmma_fence() lies between ordinary code that wrote a and this product"));
  }
  std::memcpy(known->values, request.a, sizeof known->values);
  known->under_way = true;
  known->last = mine.started;
  known->site = site;
}

// ---- what a warp does

/// Rows 16w … 16w + 15 of D, into what the lanes keep beside their registers.
void compute(const WarpProduct& product, const Block& block, int warp) {
  const ProductRequest& request = product.request;
  static thread_local float rows[16 * kMaxK];
  static thread_local float columns[kMaxK * kColumnPitch];
  const unsigned char* const shared = block.memory->shared();
  if (request.a) {
    const std::uint32_t* registers[32];
    for (int lane = 0; lane < 32; ++lane) registers[lane] = product.a[lane];
    read_a(request.element, registers, rows);
  } else {
    read_a(decode(request.a_descriptor, request.major_a, request.element, 64), warp % kWarps, shared, rows);
  }
  read_b(decode(request.b_descriptor, request.major_b, request.element, request.n), shared, columns);
  multiply(rows, columns, product_k(request.element), request.n, request.accumulate, product.d);
}

void compute_before(std::uint64_t end, WarpProducts& warp_products, const Block& block, int warp) {
  for (; warp_products.computed < end; ++warp_products.computed) {
    compute(warp_products.under_way.front(), block, warp);
    warp_products.under_way.pop_front();
  }
}

/// The operands are read from now on, until the warp has waited. All of A on behalf of every warp, though a warp's own
/// results need 16 rows of it: the product is the warpgroup's, and nothing says which warp has which part read.
void note_reads(Block& block, int warp, WarpProducts& warp_products, std::uint64_t group, const ProductRequest& request,
                Site site) {
  RaceChecker& race = *block.race;
  const Place place = Place::site(site);
  int lanes[32];
  for (int lane = 0; lane < 32; ++lane) lanes[lane] = race.agent_of(block.rank, warp * 32 + lane);
  std::deque<GroupReader>& readers = warp_products.readers;
  if (readers.empty() || readers.back().group != group) {
    readers.push_back({group, race.start_operation(lanes, 32, "wgmma", place)});
  } else {
    race.inform(readers.back().operation, lanes, 32, "wgmma", place);
  }
  const int reader = readers.back().operation;
  const auto read = [&](std::uint32_t offset) {
    race.shared_access(reader, block.rank, offset, 16, AccessKind::load, place);
  };
  if (!request.a) {
    for_each_operand_chunk(decode(request.a_descriptor, request.major_a, request.element, 64), 0, 64, read);
  }
  for_each_operand_chunk(decode(request.b_descriptor, request.major_b, request.element, request.n), 0, request.n, read);
}

/// The lanes of a warp start a product.
void start(const WarpMeeting& meeting, Thread* lanes) {
  Block& block = *lanes[0].block;
  const int warp = lanes[0].warp;
  const auto request_of = [&](int lane) -> const ProductRequest& {
    return *static_cast<const ProductRequest*>(lanes[lane].operands);
  };
  const ProductRequest& request = request_of(0);
  for (int lane = 1; lane < 32; ++lane) {
    if (!agree(request, request_of(lane)) || lanes[lane].products->groups != lanes[0].products->groups) {
      fault(meeting.site, "wgmma: lanes 0 and " + std::to_string(lane) +
                              " of a warp disagree on the operands, on `accumulate`, or on the groups before");
    }
  }
  const std::size_t shared_bytes = block.memory->shared_bytes();
  const auto require = [&](const char* name, const MatrixOperand& operand) {
    const std::string wrong = operand_fault(operand, shared_bytes);
    if (!wrong.empty()) fault(meeting.site, std::string("wgmma: ") + name + ": " + wrong);
  };
  if (!request.a) require("A", decode(request.a_descriptor, request.major_a, request.element, 64));
  require("B", decode(request.b_descriptor, request.major_b, request.element, request.n));

  WarpgroupProducts& warpgroup = warpgroup_of(block, warp);
  WarpProducts& mine = warpgroup.warps[warp % kWarps];
  const std::size_t index = static_cast<std::size_t>(mine.started - warpgroup.first);
  if (index == warpgroup.agreed.size()) warpgroup.agreed.push_back({request, meeting.site});
  AgreedProduct& agreed = warpgroup.agreed[index];
  if (!agree(agreed.request, request)) {
    fault(meeting.site,
          "wgmma: the warps of a warpgroup disagree on the operands: another one started the product at " +
              line_of(agreed.site));
  }
  agreed.warps |= 1u << warp % kWarps;
  bool some_complete = false;
  while (!warpgroup.agreed.empty() && warpgroup.agreed.front().warps == 0xfu) {
    warpgroup.agreed.pop_front();
    ++warpgroup.first;
    some_complete = true;
  }
  if (some_complete) {
    for (const int t : warpgroup.waiting) block.wake(t);
    warpgroup.waiting.clear();
  }

  WarpProduct& product = mine.under_way.emplace_back();
  product.request = request;
  product.site = meeting.site;
  for (int lane = 0; lane < 32; ++lane) {
    const ProductRequest& of = request_of(lane);
    if (of.a) std::memcpy(product.a[lane], of.a, sizeof product.a[lane]);
    ThreadProducts& products = *lanes[lane].products;
    for (Accumulators& accumulators : products.accumulators) {
      if (accumulators.d == of.d) product.d[lane] = accumulators.values.data();
    }
    products.last = meeting.site;
    ++products.started;
    lanes[lane].products_in_flight = true;
  }
  ++mine.started;
  if (block.race) note_reads(block, warp, mine, lanes[0].products->groups, request, meeting.site);
  if (block.launch.options.delivery == Delivery::immediately) compute_before(mine.started, mine, block, warp);
}
const WarpOperation kStart{"wgmma", false, start};

/// Gives a lane the results of its products before `end`.
void take_home(Thread& lane, std::uint64_t end, Site site) {
  ThreadProducts& products = *lane.products;
  for (Accumulators& accumulators : products.accumulators) {
    if (!accumulators.under_way || accumulators.last >= end) continue;
    if (!is_poison(accumulators.d, static_cast<int>(accumulators.count))) {
      throw Error(line_of(accumulators.site) + ": somebody has written to d between this wgmma and the wait at " +
                  line_of(site) + " " + position(lane));
    }
    std::copy(accumulators.values.begin(), accumulators.values.end(), accumulators.d);
    accumulators.under_way = accumulators.fenced = false;
  }
  for (ARegisters& registers : products.a_registers) {
    if (!registers.under_way || registers.last >= end) continue;
    if (std::memcmp(registers.values, registers.a, sizeof registers.values) != 0) {
      throw Error(line_of(registers.site) + ": somebody has written to a between this wgmma and the wait at " +
                  line_of(site) + " (or it went out of scope) " + position(lane));
    }
    registers.under_way = false;
  }
  note_under_way(lane);
}

/// The lanes of a warp wait, and their products have been started by all warps.
void wait(const WarpMeeting& meeting, Thread* lanes) {
  Block& block = *lanes[0].block;
  const int warp = lanes[0].warp;
  for (int lane = 0; lane < 32; ++lane) {
    if (lanes[lane].value != lanes[0].value || lanes[lane].products->open != lanes[0].products->open) {
      fault(meeting.site, "wgmma_wait: lanes 0 and " + std::to_string(lane) +
                              " of a warp disagree on the groups that they have committed or wait for");
    }
  }
  const std::deque<std::uint64_t>& open = lanes[0].products->open;
  const auto newest_left = static_cast<std::size_t>(lanes[0].value);
  if (open.size() <= newest_left) return;
  const std::size_t waited = open.size() - newest_left;
  const std::uint64_t end = open[waited - 1];
  WarpProducts& mine = warpgroup_of(block, warp).warps[warp % kWarps];
  compute_before(end, mine, block, warp);
  const std::uint64_t first_group = lanes[0].products->groups - open.size();
  while (block.race && !mine.readers.empty() && mine.readers.front().group < first_group + waited) {
    const int reader = mine.readers.front().operation;
    const std::uint32_t time = block.race->operation_time(reader);
    for (int lane = 0; lane < 32; ++lane) {
      block.race->acquire_operation(block.race->agent_of(lanes[lane]), reader, time);
    }
    block.race->end_operation(reader);
    mine.readers.pop_front();
  }
  for (int lane = 0; lane < 32; ++lane) {
    take_home(lanes[lane], end, meeting.site);
    std::deque<std::uint64_t>& groups = lanes[lane].products->open;
    groups.erase(groups.begin(), groups.begin() + static_cast<std::ptrdiff_t>(waited));
  }
}
const WarpOperation kWait{"wgmma_wait", false, wait};

void prepare(Thread& me, const char* name, Site site) {
  Block& block = *me.block;
  const std::size_t warpgroups = block.threads.size() / 128;
  if (static_cast<std::size_t>(me.warp / kWarps) >= warpgroups) {
    fault(site, std::string(name) + " is for the 128 threads of a warpgroup; the block has " +
                    std::to_string(block.threads.size()) + " threads, and this one is of none");
  }
  if (block.products.empty()) {
    block.products.resize(warpgroups);
    for (auto& warpgroup : block.products) warpgroup = std::make_shared<WarpgroupProducts>();
  }
  products_of(me);
}

}  // namespace

void start_product(const ProductRequest& request, Site site) {
  const Unwatched scope;
  Thread& me = *t_thread;
  prepare(me, "wgmma", site);
  if (leads_warp()) record(TimelineEvent::Kind::issue, site);
  bring_accumulators(me, request, site);
  bring_a(me, request, site);
  me.operands = const_cast<ProductRequest*>(&request);
  meet(kAllLanes, kStart, site);
}

void fence_products(Site site) {
  const Unwatched scope;
  if (switched_off(site)) return;
  Thread& me = *t_thread;
  prepare(me, "wgmma_fence", site);
  ThreadProducts& mine = *me.products;
  mine.fenced = true;
  for (Accumulators& accumulators : mine.accumulators) {
    if (accumulators.under_way) continue;
    std::copy_n(accumulators.d, accumulators.count, accumulators.values.begin());
    accumulators.fenced = true;
  }
  for (ARegisters& registers : mine.a_registers) {
    if (!registers.under_way) std::memcpy(registers.values, registers.a, sizeof registers.values);
  }
}

void commit_products() {
  const Unwatched scope;
  ThreadProducts& mine = products_of(*t_thread);
  mine.open.push_back(mine.started);
  ++mine.groups;
}

void wait_products(std::size_t newest_left, Site site) {
  const Unwatched scope;
  if (switched_off(site)) return;
  Thread& me = *t_thread;
  prepare(me, "wgmma_wait", site);
  const TimelineWait timeline(site);
  WarpgroupProducts& warpgroup = warpgroup_of(*me.block, me.warp);
  // Each lane by itself: by the time it sleeps, another warp may have started the last product and woken the others.
  const auto& open = me.products->open;
  while (open.size() > newest_left && !warpgroup.complete_before(open[open.size() - newest_left - 1])) {
    warpgroup.waiting.push_back(me.linear);
    wait_for("wgmma_wait", site, 0, &warpgroup);
  }
  me.value = newest_left;
  meet(kAllLanes, kWait, site);
}

std::uint32_t matrix_address(const void* smem, std::uint32_t leading_bytes, std::uint32_t stride_bytes, Site site) {
  const Unwatched scope;
  const std::ptrdiff_t offset = t_thread->block->shared_offset(smem, 1);
  if (offset < 0) fault(site, "matrix_descriptor: the matrix is not in this block's shared memory");
  if (offset % 16 || leading_bytes % 16 || stride_bytes % 16 || leading_bytes >= 1u << 18 || stride_bytes >= 1u << 18) {
    fault(site, "matrix_descriptor: offset " + std::to_string(offset) + ", leading_bytes " +
                    std::to_string(leading_bytes) + ", stride_bytes " + std::to_string(stride_bytes) +
                    "; allowed: multiples of 16, distances below 262144");
  }
  return static_cast<std::uint32_t>(offset);
}

void require_no_products(Thread& thread) {
  if (!thread.products) return;
  const ThreadProducts& products = *thread.products;
  const std::uint64_t committed = products.open.empty() ? 0 : products.open.back();
  if (thread.products_in_flight) {
    throw Error(line_of(products.last) + ": the thread exits without " +
                (committed == products.started ? "waiting for" : "committing") + " this wgmma " + position(thread));
  }
}

void require_whole_warpgroups(const Block& block) {
  for (const auto& warpgroup : block.products) {
    if (warpgroup->agreed.empty()) continue;
    throw Error(line_of(warpgroup->agreed.front().site) +
                ": only a part of a warpgroup's four warps has started this wgmma " + position(block));
  }
}

void check_registers(const Thread& thread, std::uintptr_t address, std::size_t bytes, AccessKind kind, Place place) {
  const Unwatched scope;
  const auto* const pointer = reinterpret_cast<const void*>(address);
  const auto report = [&](const char* what, Site product) {
    const std::string line = place.name();
    thread.block->launch.find("registers " + line + line_of(product),
                              line + ": " + what + " of the wgmma at " + line_of(product) +
                                  ", which is under way: wgmma_wait has to come first " + position(thread));
  };
  for (const Accumulators& accumulators : thread.products->accumulators) {
    if (accumulators.under_way && accumulators.overlaps(pointer, bytes)) {
      report(kind == AccessKind::load ? "reads d" : "writes d", accumulators.site);
    }
  }
  for (const ARegisters& registers : thread.products->a_registers) {
    const auto begin = reinterpret_cast<std::uintptr_t>(registers.a);
    if (kind != AccessKind::load && registers.under_way && address < begin + sizeof registers.values &&
        begin < address + bytes) {
      report("writes a", registers.site);
    }
  }
}

}  // namespace gpu::emulator
