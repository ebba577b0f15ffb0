// Preloaded in front of the MPI library: an MPI that grants the tags of the standard, 0 .. 32767, and none beyond.
#include <mpi.h>

#include <cstdio>
#include <cstdlib>

namespace {

int largest_tag = 32767;

void check(const char* call, int tag) {
  if (tag <= largest_tag) return;
  std::fprintf(stderr, "%s with tag %d, and this MPI grants %d\n", call, tag, largest_tag);
  std::abort();
}

}  // namespace

extern "C" {

int MPI_Comm_get_attr(MPI_Comm comm, int key, void* value, int* known) {
  const int code = PMPI_Comm_get_attr(comm, key, value, known);
  if (code == MPI_SUCCESS && key == MPI_TAG_UB && *known != 0) *static_cast<int**>(value) = &largest_tag;
  return code;
}

int MPI_Isend(const void* data, int count, MPI_Datatype type, int peer, int tag, MPI_Comm comm, MPI_Request* request) {
  check("MPI_Isend", tag);
  return PMPI_Isend(data, count, type, peer, tag, comm, request);
}

int MPI_Irecv(void* data, int count, MPI_Datatype type, int peer, int tag, MPI_Comm comm, MPI_Request* request) {
  check("MPI_Irecv", tag);
  return PMPI_Irecv(data, count, type, peer, tag, comm, request);
}
}
