# How every target of ours is made: warnings are errors (THINWIRE_WERROR), sanitizers apply to all, include paths start at the root.
add_library(thinwire_options INTERFACE)
target_compile_features(thinwire_options INTERFACE cxx_std_20)
target_include_directories(thinwire_options INTERFACE $<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}/thinwire>)
add_library(thinwire_warnings INTERFACE)
if(THINWIRE_WERROR)
  set(werror -Werror)
  set(cuda_werror -Werror=all-warnings)
endif()
# Members left out of a designated initialiser take their defaults: that is how optional op arguments are written.
target_compile_options(thinwire_warnings INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra ${werror} -Wno-missing-field-initializers>
  # GCC 12 sees overlaps in its own std::string (PR 105329), GCC 11 an empty std::optional that is read, and coroutine frames
  # freed by a delete of another kind than their new.
  $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-restrict>
  $<$<AND:$<COMPILE_LANG_AND_ID:CXX,GNU>,$<VERSION_LESS:$<CXX_COMPILER_VERSION>,12>>:-Wno-maybe-uninitialized>
  $<$<AND:$<COMPILE_LANG_AND_ID:CXX,GNU>,$<VERSION_LESS:$<CXX_COMPILER_VERSION>,12>>:-Wno-mismatched-new-delete>)
if(THINWIRE_UNITY)  # a class of an anonymous namespace is at home in the file that is included, too
  target_compile_options(thinwire_warnings INTERFACE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-subobject-linkage>)
endif()
# -Wpedantic is out for nvcc: the line directives of its front end break it.
target_compile_options(thinwire_warnings INTERFACE
  $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra ${cuda_werror} -Xcompiler=-Wno-missing-field-initializers,-Wno-restrict>)
if(THINWIRE_SANITIZE)
  target_compile_options(thinwire_options INTERFACE -fsanitize=${THINWIRE_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(thinwire_options INTERFACE -fsanitize=${THINWIRE_SANITIZE})
  if(THINWIRE_SANITIZE MATCHES thread)
    set(THINWIRE_SANITIZER_ENVIRONMENT ";UCX_MEM_EVENTS=n")  # UCX's hooks run where a thread of ThreadSanitizer has ended: a crash
  endif()
endif()

# For code that parses words and not numbers (mains, configuration, tests): half the build time, nothing lost.
set(THINWIRE_COLD $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CONFIG:Release>>:-O1>)

# thinwire_unity(TARGET): its files are compiled eight at a time, where THINWIRE_UNITY is on. Names in their anonymous namespaces then
# have to differ, or one of the files is named in thinwire_apart(files...). A file with flags of its own is apart by itself. CUDA files,
# which CMake unites from 3.31 on, share names and stay apart.
function(thinwire_unity target)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${THINWIRE_UNITY} UNITY_BUILD_BATCH_SIZE 8)
  get_target_property(kernels ${target} SOURCES)
  list(FILTER kernels INCLUDE REGEX "[.]cu$")
  if(kernels)
    thinwire_apart(${kernels})
  endif()
endfunction()
function(thinwire_apart)
  set_source_files_properties(${ARGN} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
endfunction()

# thinwire_library(NAME files... LINK targets...): a static library of one module.
function(thinwire_library name)
  cmake_parse_arguments(ARG "" "" "LINK;PRIVATE_LINK" ${ARGN})
  add_library(${name} STATIC ${ARG_UNPARSED_ARGUMENTS})
  target_link_libraries(${name} PUBLIC thinwire_options ${ARG_LINK} PRIVATE $<BUILD_INTERFACE:thinwire_warnings> ${ARG_PRIVATE_LINK})
  thinwire_unity(${name})
  set_property(GLOBAL APPEND PROPERTY THINWIRE_LIBRARIES ${name})
endfunction()

# thinwire_program(NAME main.cpp LINK targets...): one of the programs of docs/programs.md.
function(thinwire_program name)
  cmake_parse_arguments(ARG "" "" "LINK" ${ARGN})
  add_executable(${name} ${ARG_UNPARSED_ARGUMENTS})
  target_link_libraries(${name} PRIVATE ${ARG_LINK} thinwire_options thinwire_warnings)
  target_compile_options(${name} PRIVATE ${THINWIRE_COLD})
  set_property(GLOBAL APPEND PROPERTY THINWIRE_PROGRAMS ${name})
endfunction()

# thinwire_test(NAME files... LINK targets... [SLOW] [CORE] [TIMING] [GROUP program]): the GoogleTest cases of these files, as one entry of
# ctest. The files of a folder share a program, FOLDER_tests, or FOLDER_core_tests for CORE ones: those are what `scripts/test.sh fast`
# builds and runs. SLOW ones run in neither `fast` nor the sanitizers; TIMING ones look at clocks (scripts/check_timing). GROUP names another program, where flags have to differ. Each
# file has a namespace of its own name, so that a program's files are compiled as one. NAME is a target, too: the program that holds it.
function(thinwire_test name)
  cmake_parse_arguments(ARG "SLOW;CORE;TIMING" "GROUP" "LINK" ${ARGN})
  get_filename_component(program ${CMAKE_CURRENT_SOURCE_DIR} NAME)
  if(ARG_CORE)
    string(APPEND program _core)
  endif()
  string(APPEND program _tests)
  if(ARG_GROUP)
    set(program ${ARG_GROUP})
  endif()
  if(NOT TARGET ${program})
    add_executable(${program} ${CMAKE_SOURCE_DIR}/tests/support/grouped_main.cpp)
    target_link_libraries(${program} PRIVATE thinwire_options thinwire_warnings GTest::gtest)
    set_target_properties(${program} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
    target_compile_options(${program} PRIVATE ${THINWIRE_COLD})
    thinwire_unity(${program})
  endif()
  target_sources(${program} PRIVATE ${ARG_UNPARSED_ARGUMENTS})
  target_link_libraries(${program} PRIVATE ${ARG_LINK})
  if(ARG_CORE)
    set_property(GLOBAL APPEND PROPERTY THINWIRE_CORE_TESTS ${program})
  endif()
  add_custom_target(${name} DEPENDS ${program})
  list(TRANSFORM ARG_UNPARSED_ARGUMENTS REPLACE ".*/" "" OUTPUT_VARIABLE files)
  thinwire_test_entry(${name} "${program};${files}" "$<IF:$<BOOL:${ARG_SLOW}>,slow,fast>$<$<BOOL:${ARG_CORE}>:$<SEMICOLON>core>$<$<BOOL:${ARG_TIMING}>:$<SEMICOLON>timing>")
  set(thinwire_test_command ${program} ${files} PARENT_SCOPE)
endfunction()

# thinwire_test_entry(NAME COMMAND LABELS variables...): runs COMMAND at the root, for instance thinwire_test_command (that of the last
# thinwire_test) once more with other variables of the environment.
function(thinwire_test_entry name command labels)
  add_test(NAME ${name} COMMAND ${command} WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
  set_tests_properties(${name} PROPERTIES LABELS "${labels}" TIMEOUT 1800
    ENVIRONMENT "OMP_WAIT_POLICY=passive${THINWIRE_SANITIZER_ENVIRONMENT};${ARGN}")
endfunction()

# thinwire_kernels(TARGET files... [BF16 files...]): compiles kernel files once per instruction set into TARGET (see
# engine/base/ops/isa.h). The files behind BF16 use avx512_bf16, for the others it would change nothing.
function(thinwire_kernels target)
  cmake_parse_arguments(ARG "" "" "BF16" ${ARGN})
  set(avx2 -mavx2 -mfma -mf16c)
  set(avx512 ${avx2} -mavx512f -mavx512bw -mavx512vl -mavx512dq -mprefer-vector-width=512)
  set(avx512_bf16 ${avx512} -mavx512bf16)
  set(level -O3)
  if(THINWIRE_SANITIZE)
    set(level $<IF:$<CONFIG:Debug>,-O0,-O1>)
  endif()
  set(avx2_files ${ARG_UNPARSED_ARGUMENTS} ${ARG_BF16})
  set(avx512_files ${avx2_files})
  set(avx512_bf16_files ${ARG_BF16})
  foreach(isa avx2 avx512 avx512_bf16)
    if(NOT ${isa}_files)
      continue()
    endif()
    set(object ${target}_${isa})
    add_library(${object} OBJECT ${${isa}_files})
    # Hidden visibility keeps each instruction set's code to itself; instrumented -O3 kernels take minutes each to compile, so
    # sanitized builds make do with -O1, or none at all.
    target_compile_options(${object} PRIVATE ${level} ${${isa}} -fvisibility=hidden -fno-math-errno -fno-trapping-math -Wno-psabi -Wno-ignored-attributes)
    # GCC 12 calls the undefined vectors inside its own intrinsics uninitialised.
    target_compile_options(${object} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized -Wno-uninitialized>)
    target_compile_definitions(${object} PRIVATE TW_ISA=isa_${isa})
    target_link_libraries(${object} PRIVATE thinwire_options thinwire_warnings OpenMP::OpenMP_CXX)
    target_sources(${target} PRIVATE $<TARGET_OBJECTS:${object}>)
  endforeach()
endfunction()

# A source tarball names its commit itself; git might find the repository of somebody else above it.
file(STRINGS ${CMAKE_CURRENT_LIST_DIR}/archived_commit.txt THINWIRE_GIT_HASH LIMIT_COUNT 1)
if(THINWIRE_GIT_HASH MATCHES "^[$]Format")
  set(THINWIRE_GIT_HASH "unknown")
  find_package(Git QUIET)
endif()
if(GIT_FOUND)
  execute_process(COMMAND ${GIT_EXECUTABLE} -C ${CMAKE_SOURCE_DIR} describe --always --dirty=+ --exclude=*
    OUTPUT_VARIABLE THINWIRE_GIT_HASH OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE git_result)
  if(NOT git_result EQUAL 0)
    set(THINWIRE_GIT_HASH "unknown")
  endif()
  # Configured again where HEAD has moved: programs would go on naming the commit of the first build.
  execute_process(COMMAND ${GIT_EXECUTABLE} -C ${CMAKE_SOURCE_DIR} rev-parse --git-path logs/HEAD OUTPUT_VARIABLE git_log OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  get_filename_component(git_log "${git_log}" ABSOLUTE BASE_DIR ${CMAKE_SOURCE_DIR})
  if(EXISTS "${git_log}" AND NOT IS_DIRECTORY "${git_log}")
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${git_log}")
  endif()
endif()
set(THINWIRE_BACKENDS "cpu")
if(THINWIRE_CUDA)
  set(attention "own attention alone")
  if(THINWIRE_CUDNN)
    set(attention "cuDNN attention")
  endif()
  string(APPEND THINWIRE_BACKENDS ", cuda ${CUDAToolkit_VERSION} (sm ${THINWIRE_CUDA_ARCHITECTURES_TEXT}, ${attention})")
endif()
