// Runs the blocks of a CUDA kernel that g++ has compiled against simt.h: a block on one thread of the
// operating system, its threads as fibers in an order of chance, and looks at every access to memory, which
// -fsanitize=thread reports to the functions below in place of its own.
#include <link.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

struct Index { unsigned x, y, z; };

namespace {

struct Thread { Index index, block, block_dim, grid_dim; unsigned number; };  // as in simt.h

constexpr size_t STACK = 256 << 10;  // of a fiber; what is not touched takes no memory
constexpr size_t RESERVE = 64 << 10;  // of it, for the C library and for what is in this file
constexpr unsigned PATIENCE = 256;    // atomics and volatile reads before others have a turn
constexpr unsigned WARP = 32, MOST_THREADS = 1024;
constexpr size_t MOST_FINDINGS = 64, MOST_LOGGED = 4 << 20;
constexpr uint16_t NOBODY = 0xffff, MANY = 0xfffe, A_WARP = 0x8000;  // with the warp's number

}  // namespace

register Thread* now asm("r15");

// The stack pointer and the registers that a call keeps; r15 is set by whoever goes on.
extern "C" void kw_switch(void** save, void* to);
asm(R"(
.text
.globl kw_switch
.hidden kw_switch
.type kw_switch, @function
kw_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size kw_switch, .-kw_switch
)");

// What Python knows too (launching.py).
extern "C" {

enum Kind {
    OUT_OF_BOUNDS, UNINITIALIZED, MISALIGNED, READ_AFTER_WRITE, WRITE_AFTER_READ, WRITE_AFTER_WRITE,
    DIVERGENT_BARRIER, STUCK, NOT_IN_MASK, FAILED, OVERFLOW_OF_STACK,
};
enum Space { GLOBAL, SHARED, ELSEWHERE, MODULE };
enum Access { READ, WRITE, ATOMIC };

struct Finding {
    int32_t kind, space, access;
    int32_t what;  // which range, or which shared variable; -1 for none
    uint64_t pc, other_pc;  // of other_thread; where calls return to, in the module
    uint64_t address;
    int64_t offset;  // bytes, in what is accessed
    uint64_t count;
    uint32_t size;
    Index thread, block, other_thread;
    char text[96];
};

struct Range {  // of global memory
    char *begin, *end;
    uint8_t* written;  // for each byte, whether it was; null where all of it is from the start
};

struct Variable { uint64_t begin, size; };  // shared: in the block of thread-local memory; else in the module

// What the warps of a few blocks did at one place of the program.
struct MemoryTraffic {
    uint64_t pc;
    int32_t space, access;
    uint64_t requests;  // of a warp
    uint64_t pieces;    // sectors of 32 bytes, or passes over the banks of shared memory
    uint64_t least;     // of those, that the bytes which were asked for need
};

struct Launch {
    void (*call)(void** arguments);
    void** arguments;
    void* (*local)();  // an address in the module's thread-local memory
    Index grid, block;
    const Range* ranges;
    uint64_t range_count;
    const Variable* shared;  // in order, as `globals`
    uint64_t shared_count;
    const Variable* globals;  // those of the module's memory that is not constant
    uint64_t global_count;
    uint64_t granule;  // bytes of shared memory that one cell stands for
    uint64_t seed;
    uint32_t workers;
    Finding* findings;
    uint64_t finding_count;
    MemoryTraffic* traffic;  // of which there is room for traffic_count; kw_launch sets that to how many there are
    uint64_t traffic_count;
};

}  // extern "C"

namespace {

enum State { FRESH, READY, AT_BLOCK, AT_WARP, AT_ACTIVE, DONE };

// Where a function that is compiled with -fsplit-stack looks how far down its stack may go.
void stack_ends_at(char* end) { asm volatile("movq %0, %%fs:0x70" ::"r"(end) : "memory"); }

const Variable* variable_at(const Variable* begin, uint64_t count, uint64_t offset) {
    const Variable* next = std::upper_bound(begin, begin + count, offset,
                                            [](uint64_t o, const Variable& v) { return o < v.begin; });
    return next == begin ? nullptr : next - 1;
}

struct Fiber { void* sp; char* stack; };

struct Lane {  // a thread of the block
    State state;
    Fiber* fiber;
    void* at;
    int kind, predicate, which;
    int* result;
    unsigned mask;
    const void* mine;
    size_t bytes;
    void* all;
    unsigned* there;
};

struct Logged {  // an access of a block whose traffic is counted
    const void* at;
    char* address;
    uint32_t time;  // the thread's own count of accesses at that place
    uint16_t thread;
    uint8_t size, space, access;
};

struct Cell {  // of shared memory
    uint32_t write_epoch, read_epoch, write_sync, read_sync;
    uint16_t writer, reader;
    bool atomic;
    uint32_t block;  // in which it was written
    const void *write_at, *read_at;
};

struct Worker;
thread_local Worker* worker __attribute__((tls_model("initial-exec"))) = nullptr;

struct Common {
    const Launch* launch;
    std::atomic<uint64_t> next{0};
    std::atomic<bool> stop{false};
    std::mutex lock;
    std::vector<Finding> findings;
    std::vector<MemoryTraffic> traffic;
    char *module_begin, *module_end;
    uint64_t base = 0;  // of the module: what its addresses are counted from
};

struct Worker {
    Common& common;
    const Launch& launch;
    char* stack_begin = nullptr;  // of the fiber that runs
    char* shared_begin = nullptr;
    size_t shared_size = 0;
    const Range* last;
    void* scheduler = nullptr;  // its stack pointer
    Lane* running = nullptr;
    unsigned count;  // threads of a block
    std::vector<Lane> lanes;
    std::vector<Fiber> fibers;
    std::vector<Fiber*> spare;
    std::vector<unsigned> ready, yielded;
    unsigned spins = 0;  // of the thread that runs
    std::vector<uint32_t> syncs;  // of each warp
    std::vector<Cell> cells;
    uint32_t epoch = 1, block_number = 0;
    unsigned live = 0, waiting = 0;
    bool broken = false;  // a thread was ended: what others wait for may never come
    bool deserted = false;  // it was said that threads are at an end while others wait
    uint64_t random = 1;
    bool logging = false;
    std::vector<Logged> log;
    std::map<std::pair<const void*, unsigned>, uint32_t> times;
    struct Pending { bool set; char before[16]; Finding finding; } pending{};

    explicit Worker(Common& common) : common(common), launch(*common.launch), last(common.launch->ranges) {
        count = launch.block.x * launch.block.y * launch.block.z;
        lanes.resize(count);
        fibers.resize(count);
        for (Fiber& fiber : fibers) spare.push_back(&fiber);
        syncs.resize((count + WARP - 1) / WARP);
    }

    ~Worker() {
        for (Fiber& fiber : fibers)
            if (fiber.stack) munmap(fiber.stack, STACK);
    }

    unsigned chance(unsigned below) {  // xorshift64*
        random ^= random >> 12;
        random ^= random << 25;
        random ^= random >> 27;
        return static_cast<unsigned>((random * 0x2545F4914F6CDD1DULL >> 32) % below);
    }

    void shuffle(std::vector<unsigned>& threads) {
        for (size_t left = threads.size(); left > 1; --left) std::swap(threads[left - 1], threads[chance(left)]);
    }

    Thread* self(Fiber& fiber) { return reinterpret_cast<Thread*>(fiber.stack + STACK - 128); }

    static void body() {
        for (;;) {
            Worker& w = *worker;
            w.launch.call(w.launch.arguments);
            w.leave(DONE);
        }
    }

    void start(unsigned number, Index block) {
        Fiber& fiber = *spare.back();
        spare.pop_back();
        if (!fiber.stack) {
            fiber.stack = static_cast<char*>(mmap(nullptr, STACK, PROT_READ | PROT_WRITE,
                                                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
            if (fiber.stack == MAP_FAILED) abort();
            // Not all at the same place of a page, which would be at the same place of the caches.
            const size_t color = (&fiber - fibers.data()) % 24 * 64;
            void** top = reinterpret_cast<void**>(fiber.stack + STACK - 256 - color);
            *--top = nullptr;  // where body would return to; the stack is aligned as after a call
            *--top = reinterpret_cast<void*>(body);
            for (int kept = 0; kept < 5; ++kept) *--top = nullptr;
            fiber.sp = top;
        }
        const Index& d = launch.block;
        *self(fiber) = {{number % d.x, number / d.x % d.y, number / d.x / d.y}, block, d, launch.grid, number};
        lanes[number].fiber = &fiber;
    }

    void resume(unsigned number) {
        running = &lanes[number];
        Fiber& fiber = *running->fiber;
        stack_begin = fiber.stack;
        spins = 0;
        stack_ends_at(fiber.stack + RESERVE);
        now = self(fiber);
        running->state = READY;
        kw_switch(&scheduler, fiber.sp);
        if (running->state == DONE) {
            spare.push_back(&fiber);
            --live;
        }
        running = nullptr;
    }

    void leave(State state) {
        running->state = state;
        kw_switch(&running->fiber->sp, scheduler);
    }

    // The thread may be waiting for what another one does.
    void spin() {
        if (++spins < PATIENCE) return;
        yielded.push_back(static_cast<unsigned>(running - lanes.data()));
        leave(READY);
    }

    // Ends the thread that runs: its stack is made new.
    [[noreturn]] void end() {
        broken = true;
        Fiber& fiber = *running->fiber;
        running->state = DONE;
        void* ignored;
        // The fiber begins with body again when it is used next.
        const size_t color = (&fiber - fibers.data()) % 24 * 64;
        void** top = reinterpret_cast<void**>(fiber.stack + STACK - 256 - color);
        *--top = nullptr;
        *--top = reinterpret_cast<void*>(body);
        for (int kept = 0; kept < 5; ++kept) *--top = nullptr;
        fiber.sp = top;
        kw_switch(&ignored, scheduler);
        abort();
    }

    void run(uint64_t linear) {
        const Index& g = launch.grid;
        const Index block{static_cast<unsigned>(linear % g.x), static_cast<unsigned>(linear / g.x % g.y),
                          static_cast<unsigned>(linear / g.x / g.y)};
        ++epoch;
        ++block_number;
        live = count;
        waiting = 0;
        broken = deserted = false;
        random = (launch.seed * 0x9E3779B97F4A7C15ULL + linear) * 2 + 1;  // the same whoever runs the block
        for (int skipped = 0; skipped < 4; ++skipped) chance(2);
        logging = counted(linear, uint64_t{g.x} * g.y * g.z);
        for (Lane& lane : lanes) lane.state = FRESH;
        std::vector<unsigned>& order = first;
        order.resize(count);
        for (unsigned number = 0; number < count; ++number) order[number] = number;
        if (linear || launch.seed % 2) shuffle(order);
        for (unsigned number : order) {
            start(number, block);
            resume(number);
            while (!ready.empty()) resume_one();
        }
        while (live) {
            if (!ready.empty()) resume_one();
            else if (!yielded.empty()) ready.swap(yielded);
            else if (!release()) break;
        }
        settle();
        if (logging) count_traffic();
        if (live) give_up();
    }
    std::vector<unsigned> first;

    // The first block, the last, and two between.
    bool counted(uint64_t linear, uint64_t blocks) const {
        return launch.traffic && (linear % std::max<uint64_t>(1, (blocks - 1) / 3) == 0) &&
               linear / std::max<uint64_t>(1, (blocks - 1) / 3) < 4;
    }

    void note(char* address, size_t size, Space space, int access, const void* at) {
        if (log.size() >= MOST_LOGGED || size > 16) return;
        const uint16_t thread = static_cast<uint16_t>(now->number);
        log.push_back({at, address, times[{at, thread}]++, thread, static_cast<uint8_t>(size),
                       static_cast<uint8_t>(space), static_cast<uint8_t>(access)});
    }

    // What the threads of a warp do for the same time at the same place is one request.
    void count_traffic() {
        logging = false;
        const auto request = [](const Logged& a) { return std::make_tuple(a.at, a.time, a.thread / WARP); };
        std::sort(log.begin(), log.end(), [&](const Logged& a, const Logged& b) {
            return std::make_tuple(request(a), a.thread) < std::make_tuple(request(b), b.thread);
        });
        std::lock_guard<std::mutex> hold(common.lock);
        for (size_t begin = 0, end; begin < log.size(); begin = end) {
            for (end = begin; end < log.size() && request(log[end]) == request(log[begin]);) ++end;
            const Logged& one = log[begin];
            const uint64_t pc = reinterpret_cast<uint64_t>(one.at);
            auto known = std::find_if(common.traffic.begin(), common.traffic.end(), [&](const MemoryTraffic& t) {
                return t.pc == pc && t.space == one.space && t.access == one.access;
            });
            if (known == common.traffic.end())
                known = common.traffic.insert(known, {pc, one.space, one.access, 0, 0, 0});
            ++known->requests;
            if (one.space == GLOBAL) count_sectors(*known, begin, end);
            else count_passes(*known, begin, end);
        }
        log.clear();
        times.clear();
    }

    void count_sectors(MemoryTraffic& found, size_t begin, size_t end) {
        std::vector<uint64_t> sectors, bytes;
        for (size_t number = begin; number < end; ++number) {
            const uint64_t from = reinterpret_cast<uint64_t>(log[number].address);
            for (uint64_t byte = from; byte < from + log[number].size; ++byte) bytes.push_back(byte);
        }
        std::sort(bytes.begin(), bytes.end());
        bytes.erase(std::unique(bytes.begin(), bytes.end()), bytes.end());
        for (uint64_t byte : bytes)
            if (sectors.empty() || sectors.back() != byte / 32) sectors.push_back(byte / 32);
        found.pieces += sectors.size();
        found.least += (bytes.size() + 31) / 32;
    }

    // 32 banks of 4 bytes; of 8 bytes each half of a warp comes by itself, of 16 each quarter.
    void count_passes(MemoryTraffic& found, size_t begin, size_t end) {
        for (size_t from = begin, to; from < end; from = to) {
            const unsigned together = WARP * 4 / std::max<unsigned>(4, log[from].size);
            const auto part = [&](const Logged& a) { return a.thread % WARP / together; };
            std::vector<uint64_t> words;
            for (to = from; to < end && part(log[to]) == part(log[from]); ++to) {
                const uint64_t address = reinterpret_cast<uint64_t>(log[to].address);
                for (uint64_t word = address / 4; word <= (address + log[to].size - 1) / 4; ++word)
                    words.push_back(word);
            }
            std::sort(words.begin(), words.end());
            words.erase(std::unique(words.begin(), words.end()), words.end());
            unsigned banks[32] = {};
            for (uint64_t word : words) ++banks[word % 32];
            found.pieces += *std::max_element(banks, banks + 32);
            found.least += (words.size() + 31) / 32;
        }
    }

    void resume_one() {
        const size_t chosen = chance(ready.size());
        const unsigned number = ready[chosen];
        ready[chosen] = ready.back();
        ready.pop_back();
        resume(number);
    }

    // Lets those go on for whom all is there that they wait for, when nobody else can.
    bool release() {
        bool any = false;
        for (unsigned number = 0; number < count; ++number) {
            if (lanes[number].state != AT_ACTIVE) continue;
            const unsigned begin = number / WARP * WARP;
            unsigned found = 0;
            for (unsigned other = begin; other < std::min(begin + WARP, count); ++other)
                if (lanes[other].state == AT_ACTIVE && lanes[other].at == lanes[number].at) found |= 1u << other % WARP;
            for (unsigned other = begin; other < std::min(begin + WARP, count); ++other)
                if (found >> other % WARP & 1) {
                    *lanes[other].there = found;
                    lanes[other].state = READY;
                    ready.push_back(other);
                }
            any = true;
        }
        if (any) return true;
        if (waiting < live) return false;
        if (live < count && !broken && !deserted) desert();
        int voted = 0, all = 1;
        const Lane* one = nullptr;
        for (unsigned number = 0; number < count; ++number) {
            Lane& lane = lanes[number];
            if (lane.state != AT_BLOCK) continue;
            if (one && (one->which != lane.which || one->kind != lane.kind) && !broken) {
                Finding f = finding(DIVERGENT_BARRIER, lane.at, number);
                f.other_pc = reinterpret_cast<uint64_t>(one->at);
                f.other_thread = self(*lanes[one - lanes.data()].fiber)->index;
                report(f);
                broken = true;
            }
            one = one ? one : &lane;
            voted += lane.predicate;
            all &= lane.predicate;
        }
        settle();
        ++epoch;
        for (unsigned number = 0; number < count; ++number) {
            Lane& lane = lanes[number];
            if (lane.state != AT_BLOCK) continue;
            if (lane.result) *lane.result = lane.kind == 1 ? voted : lane.kind == 2 ? all : voted != 0;
            lane.state = READY;
            ready.push_back(number);
        }
        waiting = 0;
        return true;
    }

    // Some wait at a barrier that others, which have returned, do not come to.
    void desert() {
        deserted = true;
        unsigned here = 0, gone = 0;
        while (lanes[here].state != AT_BLOCK) ++here;
        while (lanes[gone].state != DONE) ++gone;
        Finding f = finding(DIVERGENT_BARRIER, lanes[here].at, here);
        const Index& d = launch.block;
        f.other_thread = {gone % d.x, gone / d.x % d.y, gone / d.x / d.y};
        report(f);
    }

    // Threads that wait for what cannot come any more.
    void give_up() {
        for (unsigned number = 0; number < count && !broken; ++number) {
            const Lane& lane = lanes[number];
            if (lane.state == DONE) continue;
            Finding f = finding(STUCK, lane.at, number);
            for (unsigned other = 0; other < count; ++other)
                if (lanes[other].state != DONE && lanes[other].at != lane.at) {
                    f.other_pc = reinterpret_cast<uint64_t>(lanes[other].at);
                    f.other_thread = self(*lanes[other].fiber)->index;
                    break;
                }
            report(f);
        }
        for (Lane& lane : lanes) {
            if (lane.state == DONE) continue;
            munmap(lane.fiber->stack, STACK);
            lane.fiber->stack = nullptr;
            spare.push_back(lane.fiber);
        }
    }

    void block_barrier(void* at, int which, int kind, int predicate, int* result) {
        Lane& lane = *running;
        lane.at = at;
        lane.which = which;
        lane.kind = kind;
        lane.predicate = predicate;
        lane.result = result;
        ++waiting;
        leave(AT_BLOCK);
    }

    void warp_exchange(void* at, unsigned mask, const void* mine, size_t bytes, void* all, unsigned* there) {
        Lane& lane = *running;
        const unsigned number = now->number, begin = number / WARP * WARP;
        lane.at = at;
        lane.mask = mask;
        lane.mine = mine;
        lane.bytes = bytes;
        lane.all = all;
        lane.there = there;
        if (!(mask >> number % WARP & 1)) {
            report(finding(NOT_IN_MASK, at, number));
            end();
        }
        lane.state = AT_WARP;
        unsigned found = 0;
        for (unsigned other = begin; other < std::min(begin + WARP, count); ++other) {
            const Lane& o = lanes[other];
            if (!(mask >> other % WARP & 1) || o.state == DONE) continue;
            if (o.state != AT_WARP || o.mask != mask || o.bytes != bytes) {
                leave(AT_WARP);
                return;
            }
            found |= 1u << other % WARP;
        }
        for (unsigned to = begin; to < std::min(begin + WARP, count); ++to) {
            if (!(found >> to % WARP & 1)) continue;
            Lane& o = lanes[to];
            for (unsigned from = begin; bytes && from < std::min(begin + WARP, count); ++from)
                if (found >> from % WARP & 1)
                    memcpy(static_cast<char*>(o.all) + from % WARP * bytes, lanes[from].mine, bytes);
            if (o.there) *o.there = found;
            if (to != number) {
                o.state = READY;
                ready.push_back(to);
            }
        }
        if (!bytes) {
            settle();
            ++syncs[number / WARP];
        }
        lane.state = READY;  // and this one goes on
    }

    unsigned active_mask(void* at) {
        unsigned found = 0;
        running->at = at;
        running->there = &found;
        leave(AT_ACTIVE);
        return found;
    }

    // Findings.

    Finding finding(Kind kind, const void* at, unsigned number) {
        Finding found{};
        found.kind = kind;
        found.what = -1;
        found.pc = reinterpret_cast<uint64_t>(at);
        found.count = 1;
        const Fiber* fiber = lanes[number].fiber;
        if (fiber && fiber->stack) {
            found.thread = self(*lanes[number].fiber)->index;
            found.block = self(*lanes[number].fiber)->block;
        }
        return found;
    }

    Finding finding(Kind kind, Space space, int access, const void* address, size_t size, const void* at) {
        Finding found = finding(kind, at, now->number);
        found.space = space;
        found.access = access;
        found.address = reinterpret_cast<uint64_t>(address);
        found.size = static_cast<uint32_t>(size);
        return found;
    }

    void report(const Finding& found) {
        if (broken && consequence(found)) return;
        std::lock_guard<std::mutex> hold(common.lock);
        for (Finding& known : common.findings)
            if (known.kind == found.kind && known.pc == found.pc && known.other_pc == found.other_pc) {
                ++known.count;
                return;
            }
        if (common.findings.size() < MOST_FINDINGS) common.findings.push_back(found);
    }

    // Of a thread of this block that was ended, which has not written what others read, for one.
    static bool consequence(const Finding& f) {
        return f.kind == FAILED || (f.space == SHARED && f.kind != OUT_OF_BOUNDS && f.kind != MISALIGNED);
    }

    // Accesses.

    void touch(char* address, size_t size, int access, const void* at) {
        if (pending.set) settle();
        if (static_cast<size_t>(address - stack_begin) < STACK) return;
        if (static_cast<size_t>(address - shared_begin) < shared_size) {
            if (__builtin_expect(logging, 0)) note(address, size, SHARED, access, at);
            touch_shared(address, size, access, at);
            return;
        }
        if (address >= last->begin && address + size <= last->end) {
            touch_global(*last, address, size, access, at);
            return;
        }
        for (uint64_t number = 0; number < launch.range_count; ++number) {
            const Range& range = launch.ranges[number];
            if (address >= range.begin && address + size <= range.end) {
                last = &range;
                touch_global(range, address, size, access, at);
                return;
            }
        }
        if (address >= common.module_begin && address + size <= common.module_end) {
            touch_module(address, size, access, at);
            return;
        }
        outside(address, size, access, at);
    }

    void touch_global(const Range& range, char* address, size_t size, int access, const void* at) {
        if (__builtin_expect(logging, 0)) note(address, size, GLOBAL, access, at);
        if (__builtin_expect(range.written != nullptr, 0)) {
            uint8_t* const written = range.written + (address - range.begin);
            if (access == WRITE) memset(written, 1, size);
            else if (memchr(written, 0, size)) {
                Finding f = finding(UNINITIALIZED, GLOBAL, access, address, size, at);
                f.what = static_cast<int32_t>(&range - launch.ranges);
                f.offset = address - range.begin;
                report(f);
                memset(written, 1, size);  // said once
            }
        }
    }

    // __device__ and __constant__ variables; constants have no names, so nothing is known of them.
    void touch_module(char* address, size_t size, int access, const void* at) {
        if (!launch.global_count) return;
        const uint64_t offset = reinterpret_cast<uint64_t>(address) - common.base;
        const Variable* const of = variable_at(launch.globals, launch.global_count, offset);
        const Variable& end_ = launch.globals[launch.global_count - 1];
        if (!of || offset + size <= of->begin + of->size || offset >= end_.begin + end_.size + 64) return;
        Finding f = finding(OUT_OF_BOUNDS, MODULE, access, address, size, at);
        f.what = static_cast<int32_t>(of - launch.globals);
        f.offset = static_cast<int64_t>(offset - of->begin);
        report(f);
        end();
    }

    [[noreturn]] void outside(char* address, size_t size, int access, const void* at) {
        Finding f = finding(OUT_OF_BOUNDS, GLOBAL, access, address, size, at);
        int64_t nearest = INT64_MAX;
        for (uint64_t number = 0; number < launch.range_count; ++number) {
            const Range& range = launch.ranges[number];
            const int64_t aside = address < range.begin ? range.begin - address : address - range.end;
            if (std::abs(aside) < nearest) {
                nearest = std::abs(aside);
                f.what = static_cast<int32_t>(number);
                f.offset = address - range.begin;
            }
        }
        report(f);
        end();
    }

    bool apart(uint16_t other, uint32_t sync) {
        // Whether what another thread, or a warp, did in this interval is not ordered before this one's.
        const unsigned mine = now->number, warp = mine / WARP;
        if (other == NOBODY || other == mine) return false;
        if (other == MANY) return true;
        const bool same = other & A_WARP ? (other & ~A_WARP) == warp : other / WARP == warp;
        return !same || sync == syncs[warp];
    }

    void touch_shared(char* address, size_t size, int access, const void* at) {
        const uint64_t offset = address - shared_begin;
        const Variable* begin = launch.shared;
        const Variable* of = variable_at(begin, launch.shared_count, offset);
        if (!of || offset + size > of->begin + of->size) {
            Finding f = finding(OUT_OF_BOUNDS, SHARED, access, address, size, at);
            f.what = of ? static_cast<int32_t>(of - begin) : -1;
            f.offset = of ? static_cast<int64_t>(offset - of->begin) : 0;
            report(f);
            end();
        }
        const uint16_t mine = static_cast<uint16_t>(now->number);
        const uint32_t sync = syncs[mine / WARP];
        const uint64_t last_cell = (offset + size - 1) / launch.granule;
        for (uint64_t number = offset / launch.granule; number <= last_cell; ++number) {
            Cell& cell = cells[number];
            if (access != WRITE && cell.block != block_number) {
                Finding f = finding(UNINITIALIZED, SHARED, access, address, size, at);
                f.what = static_cast<int32_t>(of - begin);
                f.offset = static_cast<int64_t>(offset - of->begin);
                report(f);
                cell.block = block_number;
            }
            const bool both_atomic = access == ATOMIC && cell.atomic;
            if (cell.write_epoch == epoch && !both_atomic && apart(cell.writer, cell.write_sync)) {
                race(access == READ ? READ_AFTER_WRITE : WRITE_AFTER_WRITE, cell.writer, cell.write_at,
                     *of, address, size, access, at);
                if (access == READ) cell.write_epoch = 0;  // said once
            }
            if (access == READ) {
                // Of readers only the warp's own since its last __syncwarp are to be known: others are in order.
                const bool earlier = cell.reader != MANY && !apart(cell.reader, cell.read_sync);
                if (cell.read_epoch != epoch || earlier) {
                    cell.reader = mine;
                } else if (cell.reader != MANY) {
                    const unsigned other = cell.reader & A_WARP ? cell.reader & ~A_WARP : cell.reader / WARP;
                    cell.reader = other == mine / WARP ? A_WARP | other : MANY;
                }
                cell.read_epoch = epoch;
                cell.read_sync = sync;
                cell.read_at = at;
            } else {
                if (cell.read_epoch == epoch && !both_atomic && apart(cell.reader, cell.read_sync)) {
                    race(WRITE_AFTER_READ, cell.reader, cell.read_at, *of, address, size, access, at);
                    cell.read_epoch = 0;
                }
                cell.writer = mine;
                cell.write_epoch = epoch;
                cell.write_sync = sync;
                cell.write_at = at;
                cell.atomic = access == ATOMIC;
                cell.block = block_number;
            }
        }
    }

    void race(Kind kind, uint16_t other, const void* other_at, const Variable& of, char* address, size_t size,
              int access, const void* at) {
        Finding f = finding(kind, SHARED, access, address, size, at);
        f.what = static_cast<int32_t>(&of - launch.shared);
        f.offset = static_cast<int64_t>(address - shared_begin - of.begin);
        f.other_pc = reinterpret_cast<uint64_t>(other_at);
        const Index& d = launch.block;
        const unsigned o = other == MANY ? 0 : other & A_WARP ? (other & ~A_WARP) * WARP : other;
        f.other_thread = {o % d.x, o / d.x % d.y, o / d.x / d.y};
        if (kind == WRITE_AFTER_WRITE && access == WRITE && size <= sizeof pending.before) {
            // Of no consequence where both write the same, which shows after the write.
            pending.set = true;
            memcpy(pending.before, address, size);
            pending.finding = f;
            return;
        }
        report(f);
    }

    void settle() {
        if (!pending.set) return;
        pending.set = false;
        const Finding& f = pending.finding;
        if (memcmp(reinterpret_cast<void*>(f.address), pending.before, f.size) != 0) report(f);
    }
};

struct Module { const char* in; char *begin, *end; char* local; size_t local_size; uint64_t base; };

int look(dl_phdr_info* info, size_t, void* given) {
    Module& module = *static_cast<Module*>(given);
    char *begin = nullptr, *end = nullptr;
    for (int number = 0; number < info->dlpi_phnum; ++number) {
        const ElfW(Phdr)& part = info->dlpi_phdr[number];
        if (part.p_type != PT_LOAD) continue;
        char* from = reinterpret_cast<char*>(info->dlpi_addr + part.p_vaddr);
        begin = begin ? std::min(begin, from) : from;
        end = std::max(end, from + part.p_memsz);
    }
    if (module.in < begin || module.in >= end) return 0;
    module.begin = begin;
    module.end = end;
    module.base = info->dlpi_addr;
    for (int number = 0; number < info->dlpi_phnum; ++number)
        if (info->dlpi_phdr[number].p_type == PT_TLS) {
            module.local = static_cast<char*>(info->dlpi_tls_data);
            module.local_size = info->dlpi_phdr[number].p_memsz;
        }
    return 1;
}

void work(Common& common) {
    Thread* const kept = now;
    {
        Worker mine(common);
        common.launch->local();  // so that it is there
        Module module{reinterpret_cast<const char*>(common.launch->call), nullptr, nullptr, nullptr, 0, 0};
        dl_iterate_phdr(look, &module);
        mine.shared_begin = module.local;
        mine.shared_size = module.local_size;
        mine.cells.resize(module.local_size / common.launch->granule + 2);
        {
            std::lock_guard<std::mutex> hold(common.lock);
            common.module_begin = module.begin;
            common.module_end = module.end;
            common.base = module.base;
        }
        worker = &mine;
        const Index& g = common.launch->grid;
        const uint64_t blocks = uint64_t{g.x} * g.y * g.z;
        for (uint64_t block; (block = common.next++) < blocks;) mine.run(block);
        worker = nullptr;
        stack_ends_at(nullptr);
    }
    now = kept;
}

}  // namespace

#define HERE __builtin_extract_return_addr(__builtin_return_address(0))

static inline void touched(void* address, size_t size, int access, const void* at) {
    if (Worker* const w = worker) w->touch(static_cast<char*>(address), size, access, at);
}
static inline void aligned(void* address, size_t size, int access, const void* at) {
    Worker* const w = worker;
    if (!w) return;
    if (__builtin_expect(reinterpret_cast<uintptr_t>(address) % size != 0, 0)) {
        w->report(w->finding(MISALIGNED, GLOBAL, access, address, size, at));
        w->end();
    }
    w->touch(static_cast<char*>(address), size, access, at);
}

static inline void waits() {
    if (Worker* const w = worker) w->spin();
}

extern "C" {

// What functions call at their beginning that need more than their stack has.
void kw_morestack() {
    Worker& w = *worker;
    stack_ends_at(nullptr);
    w.report(w.finding(OVERFLOW_OF_STACK, HERE, now->number));
    w.end();
}
void* kw_morestack_allocate_stack_space(size_t) { abort(); }

void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}
#define ACCESS(size)                                                                               \
    void __tsan_read##size(void* a) { aligned(a, size, READ, HERE); }                              \
    void __tsan_write##size(void* a) { aligned(a, size, WRITE, HERE); }                            \
    void __tsan_volatile_read##size(void* a) { aligned(a, size, READ, HERE); waits(); }            \
    void __tsan_volatile_write##size(void* a) { aligned(a, size, WRITE, HERE); }                   \
    void __tsan_unaligned_read##size(void* a) { touched(a, size, READ, HERE); }                    \
    void __tsan_unaligned_write##size(void* a) { touched(a, size, WRITE, HERE); }
ACCESS(1)
ACCESS(2)
ACCESS(4)
ACCESS(8)
ACCESS(16)
void __tsan_read_range(void* a, size_t size) { touched(a, size, READ, HERE); }
void __tsan_write_range(void* a, size_t size) { touched(a, size, WRITE, HERE); }

// What host code has atomics for: reference counts.
void __tsan_atomic_thread_fence(int) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
void __tsan_atomic_signal_fence(int) {}
#define FETCH(bits, name)                                                                          \
    uint##bits##_t __tsan_atomic##bits##_fetch_##name(volatile uint##bits##_t* a, uint##bits##_t v, int) { \
        return __atomic_fetch_##name(a, v, __ATOMIC_SEQ_CST);                                      \
    }
#define ATOMICS(bits)                                                                              \
    FETCH(bits, add) FETCH(bits, sub) FETCH(bits, and) FETCH(bits, or) FETCH(bits, xor)            \
    FETCH(bits, nand)                                                                              \
    uint##bits##_t __tsan_atomic##bits##_load(const volatile uint##bits##_t* a, int) {             \
        return __atomic_load_n(a, __ATOMIC_SEQ_CST);                                               \
    }                                                                                              \
    void __tsan_atomic##bits##_store(volatile uint##bits##_t* a, uint##bits##_t v, int) {          \
        __atomic_store_n(a, v, __ATOMIC_SEQ_CST);                                                  \
    }                                                                                              \
    uint##bits##_t __tsan_atomic##bits##_exchange(volatile uint##bits##_t* a, uint##bits##_t v, int) { \
        return __atomic_exchange_n(a, v, __ATOMIC_SEQ_CST);                                        \
    }                                                                                              \
    int __tsan_atomic##bits##_compare_exchange_strong(volatile uint##bits##_t* a, uint##bits##_t* c,   \
                                                      uint##bits##_t v, int, int) {                \
        return __atomic_compare_exchange_n(a, c, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);    \
    }                                                                                              \
    int __tsan_atomic##bits##_compare_exchange_weak(volatile uint##bits##_t* a, uint##bits##_t* c, \
                                                    uint##bits##_t v, int, int) {                  \
        return __atomic_compare_exchange_n(a, c, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);    \
    }                                                                                              \
    uint##bits##_t __tsan_atomic##bits##_compare_exchange_val(volatile uint##bits##_t* a,          \
                                                              uint##bits##_t c, uint##bits##_t v, int, int) { \
        __atomic_compare_exchange_n(a, &c, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);          \
        return c;                                                                                  \
    }
ATOMICS(8)
ATOMICS(16)
ATOMICS(32)
ATOMICS(64)

void kw_block_barrier(void* at, int which, int kind, int predicate, int* result) {
    worker->block_barrier(at, which, kind, predicate, result);
}
void kw_warp_exchange(void* at, unsigned mask, const void* mine, size_t bytes, void* all, unsigned* there) {
    worker->warp_exchange(at, mask, mine, bytes, all, there);
}
unsigned kw_active_mask(void* at) { return worker->active_mask(at); }
void kw_touch(const void* address, size_t bytes, int access, void* at) {
    aligned(const_cast<void*>(address), bytes, access, at);
    waits();
}
void kw_fail(const char* what, void* at) {
    if (!worker) {  // in a function that a host calls, too
        fprintf(stderr, "%s\n", what);
        abort();
    }
    Finding f = worker->finding(FAILED, at, now->number);
    strncpy(f.text, what, sizeof f.text - 1);
    worker->report(f);
    worker->end();
}

// Runs it. What was found is in launch->findings, of which there is room for finding_count.
uint64_t kw_launch(Launch* launch) {
    Common common;
    common.launch = launch;
    std::vector<std::thread> others;
    for (unsigned number = 1; number < launch->workers; ++number)
        others.emplace_back([&common] { work(common); });
    std::thread first([&common] { work(common); });
    first.join();
    for (std::thread& other : others) other.join();
    const uint64_t kept = std::min<uint64_t>(common.findings.size(), launch->finding_count);
    std::copy_n(common.findings.begin(), kept, launch->findings);
    launch->traffic_count = std::min<uint64_t>(common.traffic.size(), launch->traffic_count);
    std::copy_n(common.traffic.begin(), launch->traffic_count, launch->traffic);
    for (MemoryTraffic* t = launch->traffic; t != launch->traffic + launch->traffic_count; ++t) t->pc -= common.base;
    for (Finding* f = launch->findings; f != launch->findings + kept; ++f) {
        if (f->pc) f->pc -= common.base;
        if (f->other_pc) f->other_pc -= common.base;
    }
    return common.findings.size();
}

}  // extern "C"
