// A rank for watchdog_mpi_test.sh: sums over all ranks until told to stop, and misbehaves on request.
//
//   watch_rank DIRECTORY LIMIT_S STEPS [sleep|stuck|idle RANK SECONDS]
//
// idle is sleep, and those who wait meanwhile say what that cost: <DIRECTORY>/idle.<rank> has seconds and CPU seconds.
#include <mpi.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "engine/base/core/error.h"
#include "parallel/collective/communicator.h"

namespace {

using namespace thinwire;

// Goes on as the transport below it until told otherwise; then its poll does not come back from MPI.
class StuckTransport final : public Transport {
 public:
  explicit StuckTransport(std::unique_ptr<Transport> real) : real_(std::move(real)) {}
  int rank() const override { return real_->rank(); }
  int size() const override { return real_->size(); }
  bool post_send(const void* data, size_t bytes, int peer, int tag, uint32_t token) override {
    return real_->post_send(data, bytes, peer, tag, token);
  }
  bool post_receive(void* data, size_t bytes, int peer, int tag, uint32_t token) override {
    return real_->post_receive(data, bytes, peer, tag, token);
  }
  size_t poll(std::span<Completion> done) override {
    char byte = 0;
    if (stuck) MPI_Recv(&byte, 1, MPI_CHAR, (rank() + 1) % size(), 7, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    return real_->poll(done);
  }
  bool withdraw(uint32_t token) noexcept override { return real_->withdraw(token); }
  uint32_t listen() override { return real_->listen(); }
  void sleep(uint32_t heard, std::chrono::microseconds limit) override { real_->sleep(heard, limit); }
  void stop_listening() override { real_->stop_listening(); }
  void wake() override { real_->wake(); }
  bool all_wake() const override { return real_->all_wake(); }
  void abort(int code) override { real_->abort(code); }

  bool stuck = false;

 private:
  std::unique_ptr<Transport> real_;
};

// Of all threads: a transport or a progress thread that spins is seen as well.
double cpu_seconds() {
  rusage u{};
  ::getrusage(RUSAGE_SELF, &u);
  return static_cast<double>(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
         static_cast<double>(u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1e-6;
}

int run(int argc, char** argv) {
  const std::string directory = argv[1], fault = argc > 4 ? argv[4] : "";
  const int steps = std::atoi(argv[3]), victim = argc > 5 ? std::atoi(argv[5]) : -1;
  World world = open_world();
  StuckTransport transport(std::move(world.transport));
  const int rank = transport.rank(), size = transport.size();
  std::ofstream(directory + "/pid." + std::to_string(rank)) << ::getpid() << "\n";
  Progress progress(transport, {.spin_us = fault == "idle" ? 50 : 0,
                                .watchdog_seconds = std::atof(argv[2]),
                                .report_directory = directory,
                                .hosts = world.hosts});
  std::vector<int> all;
  for (int r = 0; r < size; ++r) all.push_back(r);
  Communicator communicator(progress, all, 0, Site::kDpGradient, nullptr);
  std::vector<float> data(1 << 16);
  HostStream stream;
  for (int step = 0; step < steps; ++step) {
    progress.set_activity("step " + std::to_string(step));
    if (step == steps / 2 && rank == victim) {
      progress.set_activity("reading a batch for step " + std::to_string(step));
      if (fault == "sleep" || fault == "idle")
        std::this_thread::sleep_for(std::chrono::duration<double>(std::atof(argv[6])));
      transport.stuck = fault == "stuck";
    }
    for (float& x : data) x = static_cast<float>(rank + 1);
    const double cpu = cpu_seconds();
    const auto start = std::chrono::steady_clock::now();
    communicator.all_reduce(View(data.data(), DType::f32, {1 << 16}), ReduceKind::kSum, stream).wait(stream);
    if (fault == "idle" && step == steps / 2 && rank != victim) {
      const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - start;
      std::ofstream(directory + "/idle." + std::to_string(rank))
          << waited.count() << " " << cpu_seconds() - cpu << "\n";
    }
    if (data[0] != static_cast<float>(size * (size + 1) / 2)) throw Error(ExitCode::kInternal, "wrong sum");
    if (step == 0 && rank == 0) std::ofstream(directory + "/running") << "1\n";
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return argc < 4 ? 64 : run(argc, argv);
  } catch (const Error& e) {
    std::fprintf(stderr, "%s\n", e.what());
    std::_Exit(static_cast<int>(e.code()));
  }
}
