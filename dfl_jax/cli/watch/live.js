// The page loads itself again when the runs have gone further, and keeps what was chosen on it.
new MutationObserver((_, observer) => {
  observer.disconnect();
  const inputs = [...document.querySelectorAll('select, input')];
  const field = (each) => each.type === 'checkbox' ? 'checked' : 'value';
  const kept = JSON.parse(sessionStorage.getItem('chosen') ?? '[]');
  inputs.forEach((each, i) => {
    if (kept[i] == null || each[field(each)] === kept[i]) return;
    each[field(each)] = kept[i];
    if (each.selectedIndex < 0) each.selectedIndex = 0; // of an option that this page lacks
    each.dispatchEvent(new Event('input', {bubbles: true}));
  });
  document.body.dataset.live = version;
  addEventListener('pagehide', () => sessionStorage.setItem('chosen', JSON.stringify(inputs.map(
    // The slider at its end stays at the end, also of more rounds.
    (each) => each.type === 'range' && each.value === each.max ? null : each[field(each)]))));
  setInterval(async () => {
    const now = await fetch('version').then((answer) => answer.text()).catch(() => version);
    if (now !== version) location.reload();
  }, 1000);
}).observe(document.body, {attributeFilter: ['data-ready']});
