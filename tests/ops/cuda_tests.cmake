# The CUDA kernels under the tests of the CPU ops. NAME_emulated_test runs them thread by thread on the CPU, in every build
# (tests/emulation/cuda_emulation.h); NAME_cuda_test, in CUDA builds, runs them on a GPU and skips where there is none.
if(THINWIRE_SANITIZE MATCHES "thread")
  return()  # it does not follow the emulation's switching of stacks
endif()
set(emulated_files)
foreach(family norm elementwise activation embedding cross_entropy reduce optimizer rotary random attention_forward attention_backward attention_mask attention_merge)
  list(APPEND emulated_files ${CMAKE_SOURCE_DIR}/engine/base/ops/${family}_cuda.cu)
endforeach()
set_source_files_properties(${emulated_files} PROPERTIES LANGUAGE CXX)  # for the targets of this folder
add_library(thinwire_emulated STATIC ${emulated_files} ${CMAKE_SOURCE_DIR}/tests/emulation/cuda_emulation.cpp
  ${CMAKE_SOURCE_DIR}/tests/emulation/cuda_emulated_ops.cpp ${CMAKE_SOURCE_DIR}/tests/support/emulated_backend.cpp)
target_include_directories(thinwire_emulated PUBLIC ${CMAKE_SOURCE_DIR}/tests/emulation)
target_compile_options(thinwire_emulated PRIVATE -mavx2 -mfma)  # what the CPU ops need too; fmaf is an instruction then
target_link_libraries(thinwire_emulated PUBLIC thinwire_ops PRIVATE thinwire_warnings)
if(THINWIRE_CUDA)
  add_library(thinwire_mirrored STATIC ${CMAKE_SOURCE_DIR}/tests/support/mirrored_backend.cpp)
  target_link_libraries(thinwire_mirrored PUBLIC thinwire_ops PRIVATE thinwire_warnings GTest::gtest)
endif()

# cuda_op_test(NAME FILE OPS [SLOW]): FILE, which calls ops of the CPU (OPS is cpu_ops, tested_ops.h turns that round) or tested_ops.
function(cuda_op_test name file ops)
  thinwire_test(${name}_emulated_test ${file} ${ARGN} GROUP emulated_${ops}_tests LINK thinwire_emulated)
  if(THINWIRE_CUDA)
    thinwire_test(${name}_cuda_test ${file} GROUP cuda_${ops}_tests LINK thinwire_mirrored)
    set_tests_properties(${name}_cuda_test PROPERTIES SKIP_REGULAR_EXPRESSION "no GPU: ")
  endif()
endfunction()

foreach(name norm elementwise activation embedding cross_entropy vocab_parallel reduce random rotary optimizer partial_dropout attention)
  cuda_op_test(${name} ${name}_test.cpp cpu_ops)
endforeach()
cuda_op_test(attention_backward attention_backward_test.cpp cpu_ops SLOW)
cuda_op_test(attention_parts attention_parts_test.cpp cpu_ops SLOW)
thinwire_test(attention_mask_emulated_test attention_mask_test.cpp GROUP emulated_cpu_ops_tests LINK thinwire_emulated)
thinwire_test(attention_merge_emulated_test attention_merge_test.cpp GROUP emulated_cpu_ops_tests LINK thinwire_emulated)
foreach(program emulated_cpu_ops_tests cuda_cpu_ops_tests)
  if(TARGET ${program})
    target_compile_options(${program} PRIVATE -include ${CMAKE_SOURCE_DIR}/tests/support/tested_ops.h)
  endif()
endforeach()
cuda_op_test(ops ops_cuda_test.cpp tested_ops)
if(THINWIRE_CUDA)
  set(apart GROUP emulation_tests)  # from the real kernels, which have the same names
endif()
thinwire_test(emulation_test emulation_cuda_test.cpp CORE ${apart} LINK thinwire_emulated)
thinwire_test(table_emulated_test table_cuda_test.cpp ${CMAKE_SOURCE_DIR}/tests/support/walked_emulated.cpp CORE ${apart} LINK thinwire_emulated)
if(THINWIRE_CUDA)
  thinwire_test(table_cuda_test table_cuda_test.cpp ${CMAKE_SOURCE_DIR}/tests/support/walked_cuda.cpp CORE GROUP table_cuda LINK thinwire_ops)
endif()
