// Prints the same as tests/test_planner.c, from the WebAssembly of the book's planner. Runs after
// the line of planner.html that contains the WebAssembly, in node or in a page.
WebAssembly.instantiate(Uint8Array.from(atob(PLANNER_WASM), c => c.charCodeAt(0)), { page: { progress() {} } }).then(({ instance }) => {
  const C = instance.exports;
  C._initialize?.();
  const said = at => {
    const all = new Uint8Array(C.memory.buffer);
    return new TextDecoder().decode(all.subarray(at, all.indexOf(0, at)));
  };
  const settings = JSON.parse(said(C.planner_settings())).settings;
  const set = line => line.split(' ').map(part => part.split('=')).forEach(([name, value]) =>
    C.planner_set(settings.findIndex(s => s.name === name), Number(value)));
  let text = said(C.planner_settings()) + '\n';
  const presets = 'model=0 cluster=0 precision=0 attention=0 gpus=1024 ';
  [presets + 'dp=16 tp=8 pp=8 cp=1 micro-batch=4 chunks=4 zero=1 sequence-parallel=1 recompute=1',
   presets + 'dp=32 tp=4 pp=8 micro-batch=2 chunks=4 zero=1 sequence-parallel=1 recompute=1',
   'model=10 cluster=0 gpus=3072 dp=6 tp=8 pp=64 micro-batch=1 chunks=2 zero=0 sequence-parallel=1 recompute=2',
   'model=13 cluster=2 precision=1 gpus=24 batch=100 layers=81 memory=141 between=12.5 ' +
   'dp=8 tp=3 pp=1 micro-batch=3 chunks=1 zero=3 sequence-parallel=0 recompute=0',
   'model=12 cluster=4 gpus=3 dp=1 tp=1 pp=3 micro-batch=1 chunks=1 zero=0 sequence-parallel=0 recompute=0',
   presets + 'context=16384 batch=192 dp=8 tp=8 pp=4 cp=4 micro-batch=1 chunks=1 zero=1 sequence-parallel=1 recompute=0',
   presets + 'attention=1 dp=32 tp=8 pp=4 cp=1 micro-batch=1 chunks=1 zero=0 sequence-parallel=0 recompute=1',
   presets + 'dp=3 tp=8 pp=8'].forEach(line => { set(line); text += said(C.planner_layout()) + '\n'; });
  set('model=12 cluster=0 precision=0 attention=0 gpus=16 batch=96 memory=40');
  text += said(C.planner_search(0)) + '\n' + said(C.planner_search(1)) + '\n';
  if (typeof document === 'undefined') process.stdout.write(text);
  else document.body.textContent = text;
});
